# The image of cdcd: the wheel built from this source tree, installed into a bare Python, run by nobody in
# particular (65532). The root file system can be read-only: only /tmp is written, by open transactions beyond buffer.memory.
#   docker build --build-arg BASE=python:3.13-slim-bookworm -t cdcd .
ARG BASE=python:3.13-slim-bookworm

# hadolint ignore=DL3006
FROM ${BASE} AS build
WORKDIR /src
# The C extensions of the hot path are compiled here; the build of an image without them fails.
RUN command -v cc >/dev/null || (apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev)
COPY pyproject.toml README.md LICENSE ./
COPY cdcd cdcd
RUN python3 -m venv /build \
    && /build/bin/pip wheel --no-cache-dir --no-deps --wheel-dir /wheel . \
    && python3 -m venv --without-pip /opt/cdcd \
    && /build/bin/pip --python /opt/cdcd/bin/python install --no-cache-dir /wheel/*.whl \
    && CDCD_EXTENSIONS=compiled /opt/cdcd/bin/cdcd --version

# hadolint ignore=DL3006
FROM ${BASE}
COPY --from=build /opt/cdcd /opt/cdcd
ENV PATH=/opt/cdcd/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 65532:65532
WORKDIR /
EXPOSE 8080
STOPSIGNAL SIGTERM
ENTRYPOINT ["cdcd"]
CMD ["--help"]
