# Airflow with Paceline, for docker-compose.yaml and for Kubernetes. Training runs in other containers, so this image
# has no torch.
#
# BASE     any image with Python >= 3.10 and its venv module
# PACKAGES further packages, for example "apache-airflow-providers-amazon[s3fs]" for s3://
# build/compose-wheels/ in the build context, if it exists, replaces the package index (`make compose-wheels`)
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
ARG PACKAGES=
# README.md is a source that always exists, because COPY rejects a pattern without a match.
COPY README.md build/compose-wheel[s] /wheels/
COPY pyproject.toml constraints.txt README.md LICENSE /opt/paceline/
COPY include /opt/paceline/include
COPY operators /opt/paceline/operators
COPY plugins /opt/paceline/plugins
COPY sensors /opt/paceline/sensors
# Editable, so that the project's folders can be mounted over these folders.
RUN python3 -m venv /opt/venv \
 && if ls /wheels/*.whl >/dev/null 2>&1; then export PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels; fi \
 && /opt/venv/bin/pip install --no-cache-dir --disable-pip-version-check --no-compile \
      -c /opt/paceline/constraints.txt -e '/opt/paceline[compose,kubernetes,worker]' $PACKAGES \
 && (python3 -m compileall -q -j 0 /opt/venv/lib >/dev/null || true)

FROM ${BASE}
COPY --from=build /opt/venv /opt/venv
COPY --from=build /opt/paceline /opt/paceline
COPY docker/health /usr/local/bin/paceline-health
ENV PATH=/opt/venv/bin:$PATH AIRFLOW_HOME=/opt/airflow PYTHONUNBUFFERED=1
# A new volume takes the owner of the folder at its mount point.
RUN echo 'airflow:x:50000:0:Airflow:/opt/airflow:/bin/sh' >>/etc/passwd \
 && mkdir -p /opt/airflow/logs /opt/airflow/data /opt/airflow/dags \
 && chown -R 50000:0 /opt/airflow && chmod -R g+w /opt/airflow
USER 50000:0
WORKDIR /opt/airflow
ENTRYPOINT ["airflow"]
