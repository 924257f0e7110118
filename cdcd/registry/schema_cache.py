"""The cached replies of a registry: ids by subject and schema, and the schema of each id.

In: schemas with the ids that a registry assigned; texts of earlier versions.  Out: the same values.
Invariant: a table that is altered often costs no more memory than its latest versions. Schemas are stored as digests,
because their texts are many times as large. An evicted entry is queried again; only the former schema of an old id
cannot be queried, so the cache has many of those.
Must not: do I/O.
"""

from __future__ import annotations

import hashlib
import json
import threading
import zlib
from collections.abc import Mapping
from os.path import commonprefix
from typing import Any

from cdcd.lru_cache import LruCache
from cdcd.schema.named_types import with_full_names

__all__ = ["SchemaCache", "VersionCache"]

MAX_IDS_OF_A_SUBJECT = 32
"""More than the versions that cdcd reads again after a lost connection (F55: also while the registry is down)."""
MAX_CANONICAL_FORMS = 1 << 16
VERSION_CACHE_BYTES = 2 << 20

_CANONICAL_ATTRIBUTES = frozenset(
    {
        "type",
        "name",
        "namespace",
        "fields",
        "symbols",
        "items",
        "values",
        "size",
        "logicalType",
        "precision",
        "scale",
    }
)


class SchemaCache:
    """The ids of one registry."""

    def __init__(self) -> None:
        self._ids: dict[str, LruCache[bytes, int]] = {}
        self._canonical_forms: LruCache[int, bytes] = LruCache(MAX_CANONICAL_FORMS)
        self._lock = threading.Lock()

    @property
    def subjects(self) -> list[str]:
        """The subjects with a cached id, sorted."""
        return sorted(list(self._ids))  # noqa: C414 - a copy in one step: another thread may add one

    def id_of(self, subject: str, text: str) -> int | None:
        """Return the id of a schema's text under a subject, None where it is not cached."""
        ids = self._ids.get(subject)
        return None if ids is None else ids.get(_digest(text))

    def newest_id_of(self, subject: str) -> int | None:
        """Return the id that was stored or used last under a subject, None without one."""
        ids = self._ids.get(subject)
        return None if ids is None else ids.newest()

    def is_of(self, schema_id: int, text: str) -> bool:
        """Whether an id that was stored still has the schema that it had; False where `text` is no schema."""
        canonical_form = self._canonical_forms.get(schema_id)
        try:
            return canonical_form is None or canonical_form == _canonical_digest(text)
        except (KeyError, ValueError, RecursionError):
            return False

    def take(self, subject: str, text: str, schema_id: int) -> bool:
        """Store a schema's id; return False without storing it where the id belonged to another schema before."""
        canonical_form = _canonical_digest(text)
        with self._lock:
            if (self._canonical_forms.get(schema_id) or canonical_form) != canonical_form:
                return False
            self._canonical_forms.put(schema_id, canonical_form)
        self._ids.setdefault(subject, LruCache(MAX_IDS_OF_A_SUBJECT)).put(_digest(text), schema_id)
        return True

    def nearest_to(self, subject: str) -> str | None:
        """Return the other subject with a cached id whose name agrees longest: the other one of a topic."""
        others = [other for other in self.subjects if other != subject]
        return max(others, key=lambda other: len(commonprefix([other, subject])), default=None)

    def forget(self, subject: str) -> None:
        """Remove the ids of a subject; the schemas of its ids remain."""
        self._ids.pop(subject, None)

    def clear(self) -> None:
        """Remove all entries."""
        self._ids.clear()
        self._canonical_forms.clear()


class VersionCache:
    """Compressed texts of one subject's versions, as many as fit: each new schema is compared with all of them.

    The versions are always read in the same order, so a full cache accepts no more: eviction would always remove the
    version that is needed next.
    """

    def __init__(self, subject: str, limit_bytes: int = VERSION_CACHE_BYTES) -> None:
        self.subject = subject
        self._left_bytes = limit_bytes
        self._texts: dict[int, bytes] = {}

    def get(self, version: int) -> str | None:
        """Return a version's text, None where it is not cached."""
        packed = self._texts.get(version)
        return None if packed is None else zlib.decompress(packed).decode()

    def put(self, version: int, text: str) -> None:
        """Store a version's text if it fits."""
        packed = zlib.compress(text.encode(), 1)
        if version not in self._texts and len(packed) <= self._left_bytes:
            self._texts[version] = packed
            self._left_bytes -= len(packed)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _canonical_digest(text: str) -> bytes:
    # A registry may return a full name as a name and a namespace.
    return _digest(json.dumps(_canonical_form(with_full_names(json.loads(text))), sort_keys=True))


def _canonical_form(schema: Any) -> Any:
    """Return a schema's attributes that affect decoding; a registry may treat schemas that agree in them as one."""
    if isinstance(schema, Mapping):
        return {name: _canonical_form(part) for name, part in schema.items() if name in _CANONICAL_ATTRIBUTES}
    return [_canonical_form(part) for part in schema] if isinstance(schema, list) else schema
