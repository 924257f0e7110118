"""Schemas without a registry: in a compacted topic, each written in the Kafka transaction that first uses it.

In: a subject and an Avro schema.  Out: its id; the index of all committed schemas, for readers.
Invariant: a record under an id becomes visible only together with, or after, the schema's own record, and only when
the schema's record is the first in the log to take its id and its version. To ensure that, `announce` writes the
schema's record and reads the log up to it, uncommitted records of other writers included, before a record that uses
the schema can be visible. So two daemons of one prefix cannot assign one id to two schemas, whatever the results of
their transactions. Readers get committed schemas only (`schema_index`); `await_decided` waits for an id whose
transaction is being decided.
Must not: decide how cdcd treats an incompatible schema.
All methods but `is_waiting`, `is_deciding`, `decided` and `schema_index` block and belong in a thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from cdcd.errors import RegistryRefused, SchemaIdTaken, SchemaIncompatible, SinkUnavailable
from cdcd.schema.attnums import is_equal_but_for_numbers
from cdcd.schema.compatibility import level_differences
from cdcd.schema.schema_index import RegisteredVersion, SchemaIndex, dump, key_of, schema_of, text_of
from cdcd.sink.schema_log import SchemaLog
from cdcd.sink.settings import SinkSettings

__all__ = ["SchemaTopic"]

_DECIDED_WITHIN_S = 20.0
_FOUND_WITHIN_S = 2.0
_LOOK_AGAIN_S = 0.5


class WriteAhead(Protocol):
    """The method of the sink that SchemaTopic needs; a group is open."""

    def write_ahead(self, topic: str, records: list[tuple[bytes, bytes | None]], doing: str) -> int: ...


class SchemaTopic:
    """The schema topic of the process; `open` and `close` are called once a session."""

    registers = True
    """Whether a new schema is registered."""

    def __init__(self, topic: str, slot: str, compatibility: str) -> None:
        self._topic = topic
        self._slot = slot
        self.compatibility = compatibility
        self._lock = threading.Condition()
        self._reading = threading.Lock()
        self._sink: WriteAhead | None = None
        self._settings: SinkSettings | None = None
        self._log: SchemaLog | None = None
        self._served: SchemaLog | None = None
        self._looked_s = 0.0
        self._claims = SchemaIndex()
        self._waiting: dict[tuple[str, str], RegisteredVersion] = {}
        self._announced: dict[tuple[str, str], RegisteredVersion] = {}
        self.schema_index: SchemaIndex | None = None
        """The committed schemas; None until the topic was read."""

    # --- a session ---------------------------------------------------------------------------------------

    def open(self, sink: WriteAhead, settings: SinkSettings) -> None:
        """Read the topic, once the sink has fenced older writers of this slot.

        Raises SinkUnavailable, TopicMissing, SinkAuthorization, SchemasUnreadable.
        """
        self.close()
        log = SchemaLog(settings, self._topic, is_committed=False)
        served = SchemaLog(settings, self._topic, is_committed=True)
        claims, schema_index = SchemaIndex(), SchemaIndex()
        try:
            self._read_both(log, claims, served, schema_index, settings.operation_timeout_s)
        finally:
            served.close()
        with self._lock:
            self._sink, self._settings = sink, settings
            self._log, self._served, self._claims, self.schema_index = log, served, claims, schema_index
            self._waiting.clear()
            self._announced.clear()
            self._lock.notify_all()

    def serve(self, settings: SinkSettings, timeout_s: float) -> None:
        """Read committed schemas without a session, for readers of a halted daemon. Raises the errors of `open`."""
        log, schema_index = SchemaLog(settings, self._topic, is_committed=True), SchemaIndex()
        try:
            log.read(schema_index, log.end(), timeout_s, is_stable_enough=True)
        finally:
            log.close()
        with self._lock:
            if self.schema_index is None:
                self.schema_index = schema_index
                self._lock.notify_all()

    def _read_both(
        self,
        log: SchemaLog,
        claims: SchemaIndex,
        served: SchemaLog,
        schema_index: SchemaIndex,
        timeout_s: float,
    ) -> None:
        end = log.end()
        written = log.read(claims, end, timeout_s)
        own_end = max((after for after, one in written if one.slot == self._slot), default=0)
        # The last session's transaction is decided, but its marker may not be written yet (F76).
        served.read(schema_index, own_end, timeout_s)
        if log.position < end or served.position < own_end:
            raise SinkUnavailable(
                "the schema topic could not be read to its end in time",
                hint="an open transaction, or a committed one whose marker a killed broker did not write, may "
                "block the topic (docs/kafka.md; kafka-transactions find-hanging); cdcd tries again",
                topic=self._topic,
            )
        served.read(schema_index, end, timeout_s, is_stable_enough=True)

    def close(self) -> None:
        """End a session. Committed schemas remain served; the next session finds out about announced ones."""
        with self._lock:
            log, self._log, self._sink = self._log, None, None
        if log is not None:
            log.close()

    def renew(self, settings: SinkSettings) -> None:
        """Use these settings from now on; the sink has no group open."""
        with self._reading, self._lock:
            self._settings = settings
            for log in (self._log, self._served):
                if log is not None:
                    log.renew(settings)

    # --- for the plans -----------------------------------------------------------------------------------

    def knows(self, subject: str, schema: Mapping[str, Any]) -> bool:
        """Whether exactly this schema is registered under `subject`."""
        with self._lock:
            return self._known(subject, text_of(schema)) is not None

    def schema_id(self, subject: str, schema: Mapping[str, Any], *, is_forced: bool = False) -> int:
        """Return the id of `schema` under `subject`; a new schema is written before it is used (`is_waiting`).

        Raises SchemaIncompatible with the exact differences when the level forbids `schema`; `is_forced` skips that.
        """
        text = text_of(schema)
        with self._lock:
            known = self._known(subject, text)
            if known is None:
                if not is_forced:
                    self._refuse_incompatible(subject, schema)
                level = "NONE" if is_forced else self.compatibility
                known = self._claims.claim(subject, text, level, self._slot, [*self._waiting.values()])
                self._waiting[subject, text] = known
            return known.schema_id

    def latest(self, subject: str) -> dict[str, Any] | None:
        """Return the newest schema under `subject`, None when it has none."""
        with self._lock:
            versions = self._versions(subject)
        schema = schema_of(versions[-1]) if versions else None
        return schema if schema is None or isinstance(schema, dict) else {"type": schema}

    def registered(self, subject: str) -> list[Any]:
        """Return the schemas under `subject`, the newest first."""
        with self._lock:
            versions = self._versions(subject)
        return [schema_of(one) for one in reversed(versions)]

    def verify_next(self) -> None:
        """Raise RegistryRefused when the topic was emptied or recreated while cdcd used it (F55)."""
        with self._lock:
            log = self._log
        if log is not None and log.end() < log.position:
            raise RegistryRefused(
                "the schema topic has lost its records: readers cannot find the schemas of records already written",
                hint="restart cdcd: it writes every schema again, under the same id",
                topic=self._topic,
            )

    def _known(self, subject: str, text: str) -> RegisteredVersion | None:
        place = (subject, text)
        assert self.schema_index is not None
        return self.schema_index.find(subject, text) or self._announced.get(place) or self._waiting.get(place)

    def _versions(self, subject: str) -> list[RegisteredVersion]:
        assert self.schema_index is not None
        mine = [*self._announced.values(), *self._waiting.values()]
        found = self.schema_index.versions(subject) + [one for one in mine if one.subject == subject]
        return sorted(found, key=lambda one: one.version)

    def _refuse_incompatible(self, subject: str, schema: Mapping[str, Any]) -> None:
        """Compare with the versions since the last forced one, the oldest first.

        An equal one of this level was compared with those before it.
        """
        earlier: list[Any] = []
        for one in reversed(self._versions(subject)):
            registered = schema_of(one)
            earlier.insert(0, registered)
            is_equal = one.compatibility == self.compatibility and is_equal_but_for_numbers(
                registered, schema
            )
            if is_equal or one.compatibility == "NONE":
                break
        found = level_differences(self.compatibility, schema, earlier)
        if found:
            raise SchemaIncompatible(
                f"the new schema is not {self.compatibility}: {'; '.join(map(str, found))}",
                status=409,
                subject=subject,
            )

    # --- for the writer ----------------------------------------------------------------------------------

    @property
    def is_waiting(self) -> bool:
        """Whether there are schemas to announce before the next records."""
        return bool(self._waiting)

    def announce(self) -> None:
        """Write the waiting schemas into the open group and verify that no other writer has taken their ids.

        Raises SchemaIdTaken (the group must not be committed), and the errors of the sink.
        """
        with self._lock:
            batch, log, sink, settings = list(self._waiting.items()), self._log, self._sink, self._settings
        if log is None or sink is None or settings is None:
            raise SinkUnavailable("the schema topic is not open")
        end = sink.write_ahead(self._topic, [(key_of(one), dump(one)) for _, one in batch], "writing schemas")
        with self._lock:  # a concurrent claim has to wait: the index changes while the log is read
            log.read(self._claims, end, settings.operation_timeout_s)
        if log.position < end:
            raise SinkUnavailable("a new schema could not be read back in time", topic=self._topic)
        lost = [one for _, one in batch if not self._claims.holds(one)]
        if lost:
            self._give_up(lost, sink, settings)
        with self._lock:
            for place, one in batch:
                del self._waiting[place]
                self._announced[place] = one
        if not settings.is_exactly_once:
            self.decided()

    def _give_up(self, lost: list[RegisteredVersion], sink: WriteAhead, settings: SinkSettings) -> None:
        if not settings.is_exactly_once:  # without a transaction to abort, only a tombstone removes them
            sink.write_ahead(self._topic, [(key_of(one), None) for one in lost], "deleting schemas")
        raise SchemaIdTaken(
            "another daemon has assigned an id or a version to another schema",
            topic=self._topic,
            subjects=",".join(one.subject for one in lost),
        )

    def decided(self) -> None:
        """Serve the announced schemas: the group that they were written in is committed."""
        with self._lock:
            assert self.schema_index is not None
            for one in self._announced.values():
                self.schema_index.take(key_of(one), dump(one))
            self._announced.clear()
            self._lock.notify_all()

    # --- for readers -------------------------------------------------------------------------------------

    def is_deciding(self, concerns: Callable[[RegisteredVersion], bool]) -> bool:
        """Whether an announced schema that matches `concerns` is in a transaction that is not decided yet."""
        return any(map(concerns, list(self._announced.values())))

    def await_decided(self, concerns: Callable[[RegisteredVersion], bool]) -> None:
        """Wait until no such schema is undecided: a reader may be faster than the reply to cdcd's own commit."""
        with self._lock:
            self._lock.wait_for(lambda: not self.is_deciding(concerns), _DECIDED_WITHIN_S)

    def refresh(self) -> None:
        """Read the schemas that others committed since the last read. Raises the errors of `open`."""
        with self._reading:
            time.sleep(max(0.0, self._looked_s + _LOOK_AGAIN_S - time.monotonic()))
            with self._lock:
                served, schema_index = self._served, self.schema_index
            if served is None or schema_index is None:
                return
            try:
                served.read(schema_index, served.end(), _FOUND_WITHIN_S)
            finally:
                served.close()
                self._looked_s = time.monotonic()
