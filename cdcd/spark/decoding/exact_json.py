"""The options with which Spark's JSON has all columns, and microseconds: by default it leaves both out."""

from __future__ import annotations

__all__ = ["EXACT_JSON"]

EXACT_JSON = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
