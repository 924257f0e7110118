"""The variables that Spark replaces in the text of SQL: `${env:NAME}`, `${spark.key}`, `${key}`.

In: a session.  Out: whether it replaces variables.
Invariant: a name with `SUBSTITUTED` is never in a text that a session with replacement parses. Spark replaces before
it parses, so quotes prevent nothing, and whoever names a table or a column would read the environment of the driver.
Expressions that name a column (`F.col`) and schemas are not replaced.
Must not: change the session, which is the caller's.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from cdcd.spark.reading.sql_dialects import SUBSTITUTED

__all__ = ["OWN_NAMES", "SUBSTITUTED", "substitutes"]

_SETTING = "spark.sql.variable.substitute"
OWN_NAMES = f"set {_SETTING} to false in the session"


def substitutes(spark: SparkSession) -> bool:
    """Return whether the session replaces variables, which is Spark's default."""
    return (spark.conf.get(_SETTING, "true") or "").strip().lower() != "false"
