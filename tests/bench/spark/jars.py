"""The jars of Spark's own decoder and Kafka source, for the peer of the benchmark. Ivy fetches them once."""

from __future__ import annotations

import os
from pathlib import Path

from cdcd.demo.stack.artefacts import Artefact, Cache
from cdcd.demo.stack.packages import ivy_retrieve
from cdcd.errors import StackError

AVRO_SERIES, AVRO_VERSION = "4.2", "4.2.0"
"""A Spark for which there are both."""
DELTA_VERSION = "4.4.0"
ICEBERG_SERIES, ICEBERG_VERSION = "4.1", "1.12.0"
"""A Spark for which Iceberg has a release."""


def avro_jar() -> Path:
    """Return the jar of spark-avro."""
    return _jars("spark-avro_2.13", "master")[0]


def submit_with_avro() -> None:
    """Have the next JVM of this process start with the jar of spark-avro."""
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--jars {avro_jar()} pyspark-shell"


def submit_with_iceberg() -> None:
    """Have the next JVM of this process start with the jar of Iceberg."""
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--jars {iceberg_jar()} pyspark-shell"


def kafka_jars() -> list[Path]:
    """Return the jars of Spark's Kafka source, with the client and what both need."""
    return _jars("spark-sql-kafka-0-10_2.13", "default")


def delta_jars() -> list[Path]:
    """Return the jars of Delta for this Spark."""
    return _jars("delta-spark_4.2_2.13", "default", "io.delta", DELTA_VERSION)


def iceberg_jar() -> Path:
    """Return the jar of Iceberg for its Spark, which has all that it needs."""
    module = f"iceberg-spark-runtime-{ICEBERG_SERIES}_2.13"
    return _jars(module, "master", "org.apache.iceberg", ICEBERG_VERSION)[0]


def _jars(
    module: str, configuration: str, organisation: str = "org.apache.spark", version: str = AVRO_VERSION
) -> list[Path]:
    place = f'org="{organisation}" name="{module}" rev="{version}"'
    dependency = f'<dependency {place} conf="default->{configuration}"/>'

    def fill(folder: Path) -> None:
        ivy_retrieve(dependency, folder, types=("jar", "bundle"))

    def probe(folder: Path) -> None:
        if not (folder / f"{module}-{version}.jar").exists():
            raise StackError("Ivy did not fetch the jars", module=module)

    folder = Cache().get(Artefact(f"{module}-{version}-jars", fill, probe))
    return sorted(folder.glob("*.jar"))
