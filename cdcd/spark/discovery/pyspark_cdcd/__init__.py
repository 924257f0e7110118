"""How Spark finds `format("cdcd")` by itself, in each environment in which cdcd is installed.

In: Spark imports each module of the Python path whose name begins with `pyspark_`, when a session first uses a data
source that no jar has.  Out: the class `DefaultSource`, which it registers under the name of the format.
Invariant: the wheel has this package at its top level (`packages.find` in pyproject.toml).
Source: `pyspark.sql.worker.lookup_data_sources`.
"""

from cdcd.spark.data_source import CdcdDataSource as DefaultSource

__all__ = ["DefaultSource"]
