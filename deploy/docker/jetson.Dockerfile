# The appliance on a Jetson Orin with JetPack 6 (L4T r36): docker build -f deploy/docker/jetson.Dockerfile -t vedette:jetson .
# JetPack's image has Python 3.10, CUDA 12.6 and TensorRT 10.3 with its Python package; the environment sees that. Python 3.10
# has no lock file: pip chooses within pyproject.toml. JetPack 7 takes nvidia.Dockerfile.
ARG L4T_IMAGE=nvcr.io/nvidia/l4t-jetpack:r36.4.0

# hadolint ignore=DL3006
FROM ${L4T_IMAGE} AS build
ARG APPRISE=2.2.0
ARG CUDA_BINDINGS=12.9.10
ARG PAHO_MQTT=2.2.0
WORKDIR /src
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends python3-venv && rm -rf /var/lib/apt/lists/*
COPY . .
RUN python3 -m venv /tool && /tool/bin/pip wheel --no-cache-dir --no-deps -w /wheel . \
    && python3 -m venv --system-site-packages /opt/vedette \
    && /opt/vedette/bin/pip install --no-cache-dir /wheel/*.whl "apprise==$APPRISE" "paho-mqtt==$PAHO_MQTT" "cuda-bindings==$CUDA_BINDINGS"

# hadolint ignore=DL3006
FROM ${L4T_IMAGE}
# decode.hardware v4l2: JetPack's ffmpeg has the decoders nvv4l2dec, whose libraries the container runtime brings.
# tzdata: without it TZ is taken for UTC, and schedules are off.
# hadolint ignore=DL3008
RUN apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends ffmpeg tzdata && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/vedette /opt/vedette
COPY deploy/docker/start.sh /usr/local/bin/vedette-start
RUN install -d -o 10001 -g 10001 -m 0700 /var/lib/vedette /etc/vedette
ENV PATH=/opt/vedette/bin:$PATH HOME=/var/lib/vedette ORT_DISABLE_TELEMETRY=1 \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=all
WORKDIR /var/lib/vedette
VOLUME ["/var/lib/vedette", "/etc/vedette"]
USER 10001:10001
EXPOSE 8080
HEALTHCHECK --interval=30s --timeout=15s --start-period=10m \
    CMD ["/opt/vedette/bin/python", "-I", "-m", "appliance.upgrade", "state", "/etc/vedette/site.yaml", "--until", "alive"]
ENTRYPOINT ["vedette-start"]
