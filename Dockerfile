# slimwhisper for a GPU host, which needs NVIDIA's driver and container toolkit, but not CUDA:
#   docker build -t slimwhisper .
# without a GPU, a third of the size:
#   docker build --build-arg VARIANT=cpu -t slimwhisper:cpu .
# docs/guides/deployment.md shows how to run it.

ARG PYTHON=3.13.14-slim-trixie
ARG VARIANT=cuda

FROM python:${PYTHON} AS base
ENV PYTHONUNBUFFERED=1 \
    PIP_ROOT_USER_ACTION=ignore \
    PIP_DISABLE_PIP_VERSION_CHECK=1

# splits the lock: torch comes first, because its layer is the largest and changes least
FROM base AS locks
WORKDIR /locks
COPY docker/requirements.txt ./
RUN awk '/^[a-z]/ {part = /^(torch|triton|nvidia-|cuda-)/ ? "torch" : /^setuptools=/ ? "build" : "rest"} {print > (part ".txt")}' requirements.txt \
    && grep -oE '^torch==[0-9.]+' torch.txt > torch-cpu.txt

FROM base AS cuda
# Triton compiles the launchers of its kernels when they are first used
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
RUN --mount=type=bind,from=locks,source=/locks/torch.txt,target=/tmp/torch.txt \
    pip install --no-cache-dir --no-deps --require-hashes -r /tmp/torch.txt
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility

FROM base AS cpu
ARG CPU_INDEX=https://download.pytorch.org/whl/cpu
RUN --mount=type=bind,from=locks,source=/locks/torch-cpu.txt,target=/tmp/torch.txt \
    pip install --no-cache-dir --no-deps --index-url "${CPU_INDEX}" -r /tmp/torch.txt

# builds the wheel in a separate stage, so that no sources stay in the image
FROM base AS wheel
# for kernels/cpu
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /build
RUN --mount=type=bind,from=locks,source=/locks/build.txt,target=/tmp/build.txt \
    pip install --no-cache-dir --no-deps --require-hashes -r /tmp/build.txt
COPY pyproject.toml setup.py README.md LICENSE THIRD_PARTY.md ./
COPY app ./app
COPY kernels ./kernels
COPY slimwhisper ./slimwhisper
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /dist .

# hadolint ignore=DL3006
FROM ${VARIANT} AS final
RUN --mount=type=bind,from=locks,source=/locks/build.txt,target=/tmp/build.txt \
    --mount=type=bind,from=locks,source=/locks/rest.txt,target=/tmp/requirements.txt \
    pip install --no-cache-dir --no-deps --require-hashes -r /tmp/build.txt \
    && pip install --no-cache-dir --no-deps --require-hashes --no-build-isolation -r /tmp/requirements.txt

# caches that any user of the container may write, for `docker run --user`; Triton compiles each
# kernel at its first use, for the GPU that is there, into the volume
RUN useradd --create-home --uid 1000 slimwhisper \
    && mkdir -p /models /outputs /data \
    && chmod 1777 /models /outputs
ENV HOME=/home/slimwhisper \
    XDG_CACHE_HOME=/models \
    HF_HOME=/models/huggingface \
    TRITON_CACHE_DIR=/models/triton \
    HF_HUB_DISABLE_TELEMETRY=1 \
    GRADIO_ANALYTICS_ENABLED=False

RUN --mount=type=bind,from=wheel,source=/dist,target=/dist \
    pip install --no-cache-dir --no-deps --no-index /dist/*.whl

LABEL org.opencontainers.image.title="slimwhisper" \
      org.opencontainers.image.description="Whisper speech-to-text with a small decoder cache: folders, web page, OpenAI's API" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="MIT AND CC-BY-SA-4.0"

USER 1000:1000
WORKDIR /outputs
VOLUME ["/models", "/outputs"]
EXPOSE 7860
STOPSIGNAL SIGTERM
# 503 until the model is downloaded and loaded
HEALTHCHECK --interval=15s --timeout=5s --start-period=15m --retries=3 \
    CMD ["python", "-Ic", "import http.client as h, sys; c = h.HTTPConnection('127.0.0.1', 7860, timeout=4); c.request('GET', '/health'); sys.exit(c.getresponse().status != 200)"]
ENTRYPOINT ["slimwhisper"]
CMD ["serve", "--host", "0.0.0.0", "--port", "7860"]
