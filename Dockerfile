# The image of cdcd: the wheel built from this source tree, installed into a bare Python, run by nobody in
# particular (65532). The root file system can be read-only: only /tmp is written, by open transactions beyond buffer.memory.
#   docker build --build-arg BASE=python:3.13-slim-bookworm -t cdcd .
# With Spark and Java, for drivers and executors (deploy/spark/README.md):
#   docker build --target spark --build-arg EXTRAS=spark-cloud -t cdcd-spark .
ARG BASE=python:3.13-slim-bookworm

# hadolint ignore=DL3006
FROM ${BASE} AS build
WORKDIR /src
# Extras of the package, with commas: spark, spark-cloud, spark-hdfs. An image of the daemon needs none.
ARG EXTRAS=
# The C extensions of the hot path are compiled here; the build of an image without them fails.
RUN command -v cc >/dev/null || (apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev)
COPY pyproject.toml README.md LICENSE ./
COPY cdcd cdcd
RUN python3 -m venv /build \
    && /build/bin/pip wheel --no-cache-dir --no-deps --wheel-dir /wheel . \
    && python3 -m venv --without-pip /opt/cdcd \
    && /build/bin/pip --python /opt/cdcd/bin/python install --no-cache-dir "$(echo /wheel/*.whl)${EXTRAS:+[$EXTRAS]}" \
    && CDCD_EXTENSIONS=compiled /opt/cdcd/bin/cdcd --version

# hadolint ignore=DL3006
FROM ${BASE} AS spark
# JAVA: a package with Java 17 or later of the distribution of BASE.
ARG JAVA=openjdk-17-jre-headless
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ${JAVA} procps tini \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/cdcd /opt/cdcd
COPY deploy/spark/cdcd_spark.py deploy/spark/entrypoint.sh /opt/cdcd/spark/
# Hadoop's login, without which no Spark session starts, needs the name of the uid. The home is writable also where the
# root file system is read-only.
RUN getent group 65532 || echo 'cdcd:x:65532:' >>/etc/group
RUN getent passwd 65532 || echo 'cdcd:x:65532:65532:cdcd:/tmp:/usr/sbin/nologin' >>/etc/passwd
# SPARK_HOME is the folder of PySpark; /opt/spark/conf, where Kubernetes mounts its configuration, is a real folder.
RUN home="$(/opt/cdcd/bin/python -c 'import os, pyspark; print(os.path.dirname(pyspark.__file__))')" \
    && mkdir -p /opt/spark/conf /opt/spark/work-dir /data \
    && ln -s "$home/bin" "$home/jars" "$home/sbin" /opt/spark/ \
    && chown 65532:65532 /opt/spark/work-dir /data
ENV PATH=/opt/cdcd/bin:/opt/spark/bin:$PATH SPARK_HOME=/opt/spark PYSPARK_PYTHON=/opt/cdcd/bin/python \
    PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 65532:65532
WORKDIR /opt/spark/work-dir
ENTRYPOINT ["/bin/sh", "/opt/cdcd/spark/entrypoint.sh"]

# The last stage is the default target: the daemon, without Spark. A build of it does not run the stage above.
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
