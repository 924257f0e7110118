"""The values of Arrow columns as Python values without limits of their own: days and microseconds are integers.

In: an Arrow array.  Out: a text that is equal for equal values; NaN is equal to NaN.
"""

from __future__ import annotations

import pyarrow as pa

from cdcd.spark.decoding.columns import plain_type


def shown(array: pa.Array) -> str:
    """Return the values, row by row."""
    return repr(array.cast(plain_type(array.type)).to_pylist())
