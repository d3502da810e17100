# The cloud worker: docker build -f deploy/docker/worker.Dockerfile -t vedette-worker .
# It asks a model server over HTTP and needs no GPU. deploy/compose/hub.yaml and deploy/k8s run it.
ARG PYTHON_IMAGE=docker.io/library/python:3.13-slim-bookworm

# hadolint ignore=DL3006
FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
COPY deploy/requirements.lock deploy/requirements.lock
RUN python3 -m venv /opt/vedette \
    && /opt/vedette/bin/pip install --no-cache-dir --require-hashes -r deploy/requirements.lock
COPY . .
RUN python3 -m venv /tool && /tool/bin/pip wheel --no-cache-dir --no-deps -w /wheel . \
    && /opt/vedette/bin/pip install --no-cache-dir --no-deps /wheel/*.whl

# hadolint ignore=DL3006
FROM ${PYTHON_IMAGE}
COPY --from=build /opt/vedette /opt/vedette
ENV PATH=/opt/vedette/bin:$PATH HOME=/tmp ORT_DISABLE_TELEMETRY=1
USER 10001:10001
EXPOSE 9108
HEALTHCHECK --interval=30s --timeout=10s --start-period=2m \
    CMD ["/opt/vedette/bin/python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9108/healthz', timeout=5)"]
ENTRYPOINT ["vedette-worker"]
CMD ["run", "--log-json", "--config", "/etc/vedette/worker.yaml"]
