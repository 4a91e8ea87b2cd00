# The image of training jobs: Python, torch, numpy and chosen packages, without root and without Paceline
# (the operator copies the `paceline.train` package into each container).
#
#   docker build -t paceline-trainer -f docker/trainer.Dockerfile docker
#
# BASE     any image with Python >= 3.10 and its venv module
# INDEX    another package index for torch, for example https://download.pytorch.org/whl/cpu for a torch without CUDA
# PACKAGES further packages, for example "xgboost-cpu lightgbm"
# wheels/  in the build context, if it exists, replaces the package indexes (`make image` can fill it)
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
ARG TORCH=2.13.0
ARG INDEX=
ARG PACKAGES=
# The Dockerfile is a source that always exists, because COPY rejects a pattern without a match.
COPY trainer.Dockerfile wheels* /wheels/
RUN python3 -m venv /opt/trainer \
 && if ls /wheels/*.whl >/dev/null 2>&1; then offline="--no-index --find-links /wheels"; \
    elif [ -n "$INDEX" ]; then index="--index-url $INDEX"; fi \
 && install="/opt/trainer/bin/pip install --no-cache-dir --disable-pip-version-check --no-compile $offline" \
 && $install $index "torch==$TORCH" numpy \
 && if [ -n "$PACKAGES" ]; then $install "torch==$TORCH" $PACKAGES; fi \
 && /opt/trainer/bin/pip uninstall --yes --disable-pip-version-check pip
# LightGBM needs the system's OpenMP library, which slim images lack: offer the one of torch or another package.
RUN find /opt/trainer/lib -name 'libgomp*' -print -quit | xargs -r -I{} ln -s {} /opt/trainer/lib/libgomp.so.1
# Compile byte code now, on all cores: the image's user cannot write byte code, so each process would compile again.
RUN python3 -m compileall -q -j 0 /opt/trainer/lib >/dev/null || true

FROM ${BASE}
COPY --from=build /opt/trainer /opt/trainer
ENV PATH=/opt/trainer/bin:$PATH LD_LIBRARY_PATH=/opt/trainer/lib PYTHONUNBUFFERED=1
USER 65532:65532
CMD ["python"]
