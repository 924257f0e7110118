"""The default sizes of a mirror, without PySpark: the command line shows them."""

DEFAULT_BUCKETS = 4
DEFAULT_MAX_ROWS = 200_000
