# The appliance on a CPU, and on Intel's GPUs: docker build -f deploy/docker/cpu.Dockerfile -t vedette:cpu .
# The base is pinned by version; whoever wants it by digest says --build-arg PYTHON_IMAGE=...@sha256:..., and Python may be
# 3.11 to 3.13. Packages are those of the lock files, by hash.
ARG PYTHON_IMAGE=docker.io/library/python:3.13-slim-bookworm

# hadolint ignore=DL3006
FROM ${PYTHON_IMAGE} AS build
ARG TARGETARCH=amd64
WORKDIR /src
COPY deploy/requirements.lock deploy/requirements-openvino.lock deploy/
RUN python3 -m venv /opt/vedette \
    && if [ "$TARGETARCH" != amd64 ]; then : >deploy/requirements-openvino.lock; fi \
    && /opt/vedette/bin/pip install --no-cache-dir --require-hashes -r deploy/requirements.lock -r deploy/requirements-openvino.lock
COPY . .
RUN python3 -m venv /tool && /tool/bin/pip wheel --no-cache-dir --no-deps -w /wheel . \
    && /opt/vedette/bin/pip install --no-cache-dir --no-deps /wheel/*.whl

# hadolint ignore=DL3006
FROM ${PYTHON_IMAGE}
ARG TARGETARCH=amd64
# OpenCL for OpenVINO; VAAPI, which the system's ffmpeg decodes by, and oneVPL for QSV. Debian removes older builds, so no
# version is named.
# hadolint ignore=DL3008
RUN if [ "$TARGETARCH" = amd64 ]; then apt-get update \
    && apt-get install -y --no-install-recommends intel-opencl-icd intel-media-va-driver libva-drm2 ffmpeg libmfx-gen1.2 libvpl2 \
    && rm -rf /var/lib/apt/lists/*; fi
COPY --from=build /opt/vedette /opt/vedette
COPY deploy/docker/start.sh /usr/local/bin/vedette-start
RUN install -d -o 10001 -g 10001 -m 0700 /var/lib/vedette /etc/vedette
ENV PATH=/opt/vedette/bin:$PATH HOME=/var/lib/vedette ORT_DISABLE_TELEMETRY=1
WORKDIR /var/lib/vedette
VOLUME ["/var/lib/vedette", "/etc/vedette"]
USER 10001:10001
EXPOSE 8080
HEALTHCHECK --interval=30s --timeout=15s --start-period=2m \
    CMD ["/opt/vedette/bin/python", "-I", "-m", "appliance.upgrade", "state", "/etc/vedette/site.yaml", "--until", "alive"]
ENTRYPOINT ["vedette-start"]
