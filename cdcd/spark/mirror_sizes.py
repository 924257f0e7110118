"""The default sizes of a mirror, without PySpark: the command line shows them."""

DEFAULT_BUCKETS = 4
DEFAULT_MAX_ROWS = 200_000
DEFAULT_DRIVER_MB = 128
"""Of the records of a batch that the driver folds. It needs some times as much memory for them."""
