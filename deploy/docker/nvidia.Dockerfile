# The appliance on an L4 or another NVIDIA GPU, x86-64; with JetPack 7, which is an ordinary CUDA 13 system, arm64:
#   docker build -f deploy/docker/nvidia.Dockerfile -t vedette:nvidia .
# The driver (580 or newer, for CUDA 13) is the host's, through the NVIDIA container toolkit; CUDA, cuDNN and TensorRT come as
# wheels, so the base is plain Python. `tensorrt-cu13-libs` has no wheel on the usual index: its build fetches NVIDIA's.
ARG PYTHON_IMAGE=docker.io/library/python:3.12-slim-bookworm

# hadolint ignore=DL3006
FROM ${PYTHON_IMAGE} AS build
# TensorRT 10, since ONNX Runtime's provider of that name needs it; detector.backend tensorrt also takes 11.
ARG TENSORRT=10.16.1.11
ARG CUDA_BINDINGS=13.5.0
ARG ONNXRUNTIME_GPU=1.31.1
ARG NVML=13.615.71
WORKDIR /src
COPY deploy/requirements.lock deploy/requirements.lock
# onnxruntime and onnxruntime-gpu overwrite each other's files: the first goes before the second comes.
RUN python3 -m venv /opt/vedette \
    && /opt/vedette/bin/pip install --no-cache-dir --require-hashes -r deploy/requirements.lock \
    && /opt/vedette/bin/pip uninstall -y onnxruntime \
    && /opt/vedette/bin/pip install --no-cache-dir "onnxruntime-gpu[cuda,cudnn]==$ONNXRUNTIME_GPU" \
        "tensorrt-cu13==$TENSORRT" "cuda-bindings==$CUDA_BINDINGS" "nvidia-ml-py==$NVML"
COPY . .
RUN python3 -m venv /tool && /tool/bin/pip wheel --no-cache-dir --no-deps -w /wheel . \
    && /opt/vedette/bin/pip install --no-cache-dir --no-deps /wheel/*.whl

# hadolint ignore=DL3006
FROM ${PYTHON_IMAGE}
COPY --from=build /opt/vedette /opt/vedette
COPY deploy/docker/start.sh /usr/local/bin/vedette-start
RUN install -d -o 10001 -g 10001 -m 0700 /var/lib/vedette /etc/vedette
# `video` brings NVDEC's library into the container, `utility` NVML's.
ENV PATH=/opt/vedette/bin:$PATH HOME=/var/lib/vedette ORT_DISABLE_TELEMETRY=1 \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,video,utility
WORKDIR /var/lib/vedette
VOLUME ["/var/lib/vedette", "/etc/vedette"]
USER 10001:10001
EXPOSE 8080
HEALTHCHECK --interval=30s --timeout=15s --start-period=10m \
    CMD ["/opt/vedette/bin/python", "-I", "-m", "appliance.upgrade", "state", "/etc/vedette/site.yaml", "--until", "alive"]
ENTRYPOINT ["vedette-start"]
