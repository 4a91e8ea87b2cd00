# The image of the applications that run alongside a job during profiling: one with a latency limit, and a load generator.
#
#   docker build -t paceline-neighbour -f docker/neighbour.Dockerfile docker
#
# BASE    any image with Python >= 3.10 and its venv module; stress-ng is installed if it is missing (Debian)
# wheels/ in the build context, if it exists, replaces the package index (`make neighbour-image` can fill it)
ARG BASE=python:3.11-slim
FROM ${BASE}
ARG OPENCV=5.0.0.93
RUN command -v stress-ng >/dev/null \
 || { apt-get update && apt-get install -y --no-install-recommends stress-ng && rm -rf /var/lib/apt/lists/*; }
# The Dockerfile is a source that always exists, because COPY rejects a pattern without a match.
COPY neighbour.Dockerfile wheels* /wheels/
RUN python3 -m venv /opt/neighbour \
 && if ls /wheels/*.whl >/dev/null 2>&1; then from="--no-index --find-links /wheels"; else from=""; fi \
 && /opt/neighbour/bin/pip install --no-cache-dir --disable-pip-version-check $from "opencv-python-headless==$OPENCV" numpy \
 && /opt/neighbour/bin/pip uninstall --yes --disable-pip-version-check pip \
 && rm -rf /wheels
ENV PATH=/opt/neighbour/bin:$PATH PYTHONUNBUFFERED=1
USER 65532:65532
CMD ["python"]
