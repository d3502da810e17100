# The appliance on a Raspberry Pi 5 with an AI HAT+, built on the Pi:
#   (cd deploy/docker/hailort && apt-get download hailort python3-hailort)
#   docker build -f deploy/docker/pi.Dockerfile -t vedette:pi .
# HailoRT's library, driver and firmware must be of one version: the library here is the host's own package, unpacked without its
# scripts, which would look for the driver. Without packages in that folder the image is one for the CPU.
# The base has the host's Python, which python3-hailort is made for: 12 (bookworm) 3.11, 13 (trixie) 3.13.
ARG DEBIAN_IMAGE=docker.io/library/debian:12-slim

# hadolint ignore=DL3006
FROM ${DEBIAN_IMAGE} AS build
WORKDIR /src
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends python3-venv ca-certificates \
    && rm -rf /var/lib/apt/lists/*
COPY deploy/requirements.lock deploy/requirements.lock
RUN python3 -m venv /opt/vedette \
    && /opt/vedette/bin/pip install --no-cache-dir --require-hashes -r deploy/requirements.lock
COPY . .
RUN python3 -m venv /tool && /tool/bin/pip wheel --no-cache-dir --no-deps -w /wheel . \
    && /opt/vedette/bin/pip install --no-cache-dir --no-deps /wheel/*.whl \
    && mkdir -p /hailort/usr \
    && find deploy/docker/hailort -name '*.deb' -exec dpkg-deb -x '{}' /hailort ';'

# hadolint ignore=DL3006
FROM ${DEBIAN_IMAGE}
# decode.hardware drm: Raspberry Pi's own ffmpeg knows the stateless HEVC decoder of a Pi 5, Debian's does not.
ARG RASPBERRY_PI=archive.raspberrypi.com/debian
ADD https://${RASPBERRY_PI}/raspberrypi.gpg.key /etc/apt/keyrings/raspberrypi.asc
# What python3-hailort imports; Debian 13 has no python3-future.
ARG HAILORT_IMPORTS="python3-numpy python3-argcomplete python3-future python3-netaddr python3-netifaces"
# tzdata: without it TZ is taken for UTC, and schedules are off.
# hadolint ignore=DL3008,SC2086
RUN . /etc/os-release && chmod 0644 /etc/apt/keyrings/raspberrypi.asc \
    && echo "deb [signed-by=/etc/apt/keyrings/raspberrypi.asc] http://${RASPBERRY_PI} $VERSION_CODENAME main" \
        >/etc/apt/sources.list.d/raspberrypi.list \
    && apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        python3 ca-certificates tzdata ffmpeg $HAILORT_IMPORTS \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /hailort/usr /usr/
COPY --from=build /opt/vedette /opt/vedette
COPY deploy/docker/start.sh /usr/local/bin/vedette-start
RUN ldconfig && install -d -o 10001 -g 10001 -m 0700 /var/lib/vedette /etc/vedette
ENV PATH=/opt/vedette/bin:$PATH HOME=/var/lib/vedette ORT_DISABLE_TELEMETRY=1
WORKDIR /var/lib/vedette
VOLUME ["/var/lib/vedette", "/etc/vedette"]
USER 10001:10001
EXPOSE 8080
HEALTHCHECK --interval=30s --timeout=15s --start-period=2m \
    CMD ["/opt/vedette/bin/python", "-I", "-m", "appliance.upgrade", "state", "/etc/vedette/site.yaml", "--until", "alive"]
ENTRYPOINT ["vedette-start"]
