"""Where `decode` decodes records: in Python's workers, by cdcd, or in the JVM, by Spark's `from_avro`.

In: the caller's choice, a session.  Out: whether the JVM decodes.
Invariant: a choice that cannot be fulfilled is an error here, before a record is read; "auto" is never an error.
Must not: use the JVM's objects, because a session of Spark Connect has none.
"""

from __future__ import annotations

from typing import Literal

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from cdcd.errors import ConfigError
from cdcd.extensions import extension
from cdcd.spark.decoding.change_columns import ErrorPolicy

Engine = Literal["auto", "native", "spark-avro"]
_MISSING = "AVRO_NOT_LOADED_SQL_FUNCTIONS_UNUSABLE"


def is_on_jvm(spark: SparkSession, engine: Engine, on_error: ErrorPolicy) -> bool:
    """Return whether the JVM decodes. "auto": only where cdcd has no C extension, and spark-avro is there.

    Raises ConfigError if "spark-avro" is missing, or cannot do what is asked for.
    """
    if engine == "native" or (engine == "auto" and extension("cdcd.columnar._arrow") is not None):
        return False
    if on_error == "quarantine":  # from_avro returns no reason
        if engine == "auto":
            return False
        raise ConfigError(
            'engine="spark-avro" does not have on_error="quarantine"', hint='choose engine="native"'
        )
    if has_from_avro(spark):
        return True
    if engine == "auto":
        return False
    raise ConfigError(
        'engine="spark-avro" needs Spark\'s package spark-avro, which is not on the class path of this session',
        hint="start the session with the coordinates of cdcd.spark.packages() in spark.jars.packages (Spark 4.1 and "
        '4.2), or choose engine="native", which needs no package',
        spark=spark.version,
    )


def has_from_avro(spark: SparkSession) -> bool:
    """Return whether the session has the function `from_avro`."""
    try:
        spark.range(1).select(F.call_function("from_avro", F.lit(b""), F.lit('"string"'))).schema  # noqa: B018
    except AnalysisException as error:
        if error.getCondition() != _MISSING:
            raise
        return False
    return True
