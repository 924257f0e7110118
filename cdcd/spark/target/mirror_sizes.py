"""The default sizes and times of a mirror, without PySpark: the command line shows them."""

DEFAULT_BUCKETS = 4
DEFAULT_MAX_ROWS = 200_000
DEFAULT_DRIVER_MB = 128
"""The most bytes of records that the driver folds in a batch. The fold needs several times as much memory."""
DEFAULT_RETAIN_S = 600.0
"""For so long an earlier version of the target can be read."""
DEFAULT_RETRY_S = 600.0
"""For so long without progress a mirror tries again after an error that may heal."""
LOCAL_HOST = "127.0.0.1"
"""The address of the metrics' port: for this machine only."""
