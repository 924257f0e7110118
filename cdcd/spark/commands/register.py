"""`python -m cdcd.spark register`: register the tables of a mirror in a catalog of Spark.

In: the parsed arguments.  Out: a line for each table; the exit status.
Invariant: a catalog that ends with this process is refused, because nothing would be registered afterwards.
Must not: read rows.
"""

from __future__ import annotations

import argparse
import sys

from pyspark.sql import SparkSession

from cdcd.errors import EXIT_FAILURE, EXIT_OK, ConfigError
from cdcd.redaction import clean
from cdcd.spark.commands.running import EXIT_UNKNOWN, log, log_to
from cdcd.spark.data_source import register
from cdcd.spark.session import is_shown_in_a_line, reason_of, submitted_or_local

_SESSION, _IN_MEMORY = "spark_catalog", "in-memory"
_THINLY_WRAPPED = ("", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
"""The session catalogs that store tables where Spark's own one does."""


def run(options: argparse.Namespace) -> int:
    """Register the tables; return the exit status."""
    log_to(sys.stderr)
    spark = submitted_or_local("cdcd register", options.cores, options.memory)
    try:
        state = register(
            lasting(spark, options.catalog),
            options.target,
            catalog=options.catalog,
            target_options=dict(options.target_option),
        )
    except Exception as error:
        if not is_shown_in_a_line(error):
            raise
        log.error("the tables cannot be registered: %s", reason_of(error))
        return EXIT_UNKNOWN
    finally:
        spark.stop()
    assert state is not None
    for topic, one in sorted(state.tables.items()):
        print(clean(f"{topic}: {one.error or f'{options.catalog}.{one.name}'}"))
    return EXIT_FAILURE if state.errors else EXIT_OK


def lasting(spark: SparkSession, catalog: str | None) -> SparkSession:
    """Return the session. Raises ConfigError if it has the catalog in its memory only."""
    if catalog is None:
        return spark
    of_session = catalog.partition(".")[0] == _SESSION or "." not in catalog
    is_own = spark.conf.get("spark.sql.catalog.spark_catalog", "") in _THINLY_WRAPPED
    if of_session and is_own and spark.conf.get("spark.sql.catalogImplementation") == _IN_MEMORY:
        raise ConfigError(
            "Spark's catalog is in the memory of this process, and ends with it",
            hint="run the command by spark-submit with --conf spark.sql.catalogImplementation=hive, or with the "
            "configuration of another catalog",
        )
    return spark
