"""What of a mirror is registered in a catalog: a small file of the target, for `status`.

    <target>/_cdcd/catalog.json

In: the storage of a target.  Out: by topic the name in the catalog, and the error that prevents it.
Invariant: the file is not part of a version: it says what was tried last, and nothing depends on it but what is shown
and what is removed from the catalog after its table.
Must not: import PySpark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from cdcd.errors import SparkReadError
from cdcd.spark.storage.uri import Storage
from cdcd.spark.target.commit_log import FOLDER

__all__ = ["CatalogState", "Registered", "read_state", "write_state"]

PATH = f"{FOLDER}/catalog.json"
MAX_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Registered:
    """The name of a table in the catalog. `error`: why it is not registered, "" if it is."""

    name: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class CatalogState:
    """The last attempt: the namespace, and by topic the tables. `error`: of the catalog as a whole."""

    catalog: str
    tables: Mapping[str, Registered] = field(default_factory=dict)
    tried_s: float = 0.0
    error: str = ""

    @property
    def errors(self) -> dict[str, str]:
        """By topic, why a table is not registered."""
        return {topic: one.error for topic, one in self.tables.items() if one.error}


def read_state(storage: Storage) -> CatalogState | None:
    """Return the last attempt, None if there was none. Raises SparkReadError, StorageError."""
    stored = storage.read_versioned(PATH, max_bytes=MAX_BYTES)
    if stored is None:
        return None
    try:
        found = json.loads(stored.data)
        tables = {topic: Registered(**one) for topic, one in found.pop("tables").items()}
        return CatalogState(tables=tables, **found)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SparkReadError(
            "a file of the target is not readable",
            hint="restore the file from a backup, or move it to another folder: cdcd then writes a new one",
            target=storage.uri,
            file=PATH,
        ) from error


def write_state(storage: Storage, state: CatalogState) -> None:
    """Replace the last attempt. Raises StorageError."""
    storage.write(PATH, json.dumps(asdict(state)).encode())
