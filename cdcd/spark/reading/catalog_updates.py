"""Keep the tables of a running mirror registered in a catalog, in a thread of its own.

In: the versions that the mirror publishes.  Out: tables in the catalog; what was tried, in the target and as metrics.
Invariant: no batch waits for the catalog, and no error of it ends the mirror: it is logged, and tried again.
Must not: look at the catalog while no table and no column has changed, unless an error is left.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from cdcd.errors import CdcdError
from cdcd.spark.reading.catalog import Catalog
from cdcd.spark.reading.catalog_state import CatalogState, read_state, write_state
from cdcd.spark.reading.mirror import Mirror
from cdcd.spark.storage.uri import Storage
from cdcd.spark.target.versions import TargetVersion

__all__ = ["CatalogUpdates", "register_all"]

PAUSE_S = 1.0
MOST_PAUSE_S = 60.0
END_WITHIN_S = 60.0
"""How long the end of the mirror waits: a request to a catalog cannot be interrupted."""
Outcome = Callable[[CatalogState], None]
log = logging.getLogger("cdcd.spark.reading.catalog")


def register_all(catalog: Catalog, opened: Mirror) -> CatalogState:
    """Register all tables of a mirror, and store what was tried. Raises StorageError, SparkReadError."""
    known = read_state(opened.target)
    before = known.tables if known is not None and known.catalog == catalog.name else {}
    state = CatalogState(catalog.name, catalog.register(opened, before), time.time())
    write_state(opened.target, state)
    return state


class CatalogUpdates:
    """Registers what the mirror publishes. `outcome` is called with each attempt."""

    def __init__(self, catalog: Catalog, storage: Storage, outcome: Outcome) -> None:
        self._catalog, self._storage, self._outcome = catalog, storage, outcome
        self._changed = threading.Condition()
        self._version: TargetVersion | None = None
        self._done: object = None
        self._ends = False
        self._logged: dict[str, str] = {}
        self._thread = threading.Thread(target=self._run, name="cdcd-catalog", daemon=True)
        self._thread.start()

    def note(self, version: TargetVersion) -> None:
        """Take the newest version; return at once."""
        with self._changed:
            self._version = version
            self._changed.notify()

    def end(self) -> None:
        """Register the newest version, and end; an error is not tried again any more."""
        with self._changed:
            self._ends = True
            self._changed.notify()
        self._thread.join(END_WITHIN_S)
        if self._thread.is_alive():
            log.warning(
                "%s: the catalog does not answer, so some tables may not be registered", self._catalog.name
            )

    def _run(self) -> None:
        pause_s: float | None = None
        while (version := self._next(pause_s)) is not None:
            if self._attempt(version):
                self._done, pause_s = _columns(version), None
            else:
                pause_s = PAUSE_S if pause_s is None else min(2 * pause_s, MOST_PAUSE_S)

    def _next(self, pause_s: float | None) -> TargetVersion | None:
        """Wait until there is something to do; `pause_s` None: no error is left. None: the end."""
        with self._changed:
            if pause_s is not None:
                self._changed.wait_for(lambda: self._ends, pause_s)
            else:
                self._changed.wait_for(lambda: self._ends or self._is_new())
            is_last = self._ends and (pause_s is not None or not self._is_new())
            return None if is_last else self._version

    def _is_new(self) -> bool:
        return self._version is not None and _columns(self._version) != self._done

    def _attempt(self, version: TargetVersion) -> bool:
        """Register a version; return whether all of it is registered."""
        try:
            state = register_all(self._catalog, Mirror(self._storage, version))
        except Exception as error:  # noqa: BLE001 - whatever it is, the mirror continues
            text = str(error) if isinstance(error, CdcdError) else type(error).__name__
            state = CatalogState(self._catalog.name, error=text)
        self._outcome(state)
        errors = state.errors | ({"the mirror": state.error} if state.error else {})
        for what, text in errors.items():
            if self._logged.get(what) != text:
                log.error(
                    "%s is not registered in the catalog; the registration is tried again: %s", what, text
                )
        self._logged = errors
        return not errors


def _columns(version: TargetVersion) -> object:
    """Return what of a version the catalog has: the tables and their columns."""
    return {topic: (one.fields, one.table_version is None) for topic, one in version.tables.items()}
