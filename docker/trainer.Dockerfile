# The image of training jobs: Python, torch and numpy, without root and without Paceline
# (the operator copies the `paceline.train` package into each container).
#
#   docker build -t paceline-trainer -f docker/trainer.Dockerfile docker
#
# BASE    any image with Python >= 3.10 and its venv module
# INDEX   another package index, for example https://download.pytorch.org/whl/cpu for a torch without CUDA
# wheels/ in the build context, if it exists, replaces the package index (`make image` can fill it)
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
ARG TORCH=2.13.0
ARG INDEX=
# The Dockerfile is a source that always exists, because COPY rejects a pattern without a match.
COPY trainer.Dockerfile wheels* /wheels/
RUN python3 -m venv /opt/trainer \
 && if ls /wheels/*.whl >/dev/null 2>&1; then from="--no-index --find-links /wheels"; \
    elif [ -n "$INDEX" ]; then from="--index-url $INDEX"; else from=""; fi \
 && /opt/trainer/bin/pip install --no-cache-dir --disable-pip-version-check --no-compile $from "torch==$TORCH" numpy \
 && /opt/trainer/bin/pip uninstall --yes --disable-pip-version-check pip
# Compile byte code now, on all cores: the image's user cannot write byte code, so each process would compile again.
RUN python3 -m compileall -q -j 0 /opt/trainer/lib >/dev/null || true

FROM ${BASE}
COPY --from=build /opt/trainer /opt/trainer
ENV PATH=/opt/trainer/bin:$PATH PYTHONUNBUFFERED=1
USER 65532:65532
CMD ["python"]
