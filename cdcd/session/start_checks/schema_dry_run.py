"""Check without writing that each table's records could be written: key, Avro schemas, compatibility with readers.

In: the published tables, the catalog, the registry or its replacement, a time limit.  Out: findings.
Invariant: the check runs the code and the policy that a row runs (`plans`); nothing is registered, created or
altered. A table is checked as the catalog has it now: the findings do not cover rows that are in the WAL already, or
a later DDL. Several threads check the tables. At the time limit the check ends and reports the number of tables left.
Must not: end a start by itself (`start_checks` knows whether a table is written to at once), store a table's schemas.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cdcd.config import Config
from cdcd.errors import CdcdError, RegistryUnavailable, SinkUnavailable, SnapshotStale, SourceUnavailable
from cdcd.findings import Finding, failure
from cdcd.pipeline.plans import Plans
from cdcd.registry.confluent import Registry
from cdcd.sink.names import message_topic
from cdcd.sink.schemas import SchemaTopic
from cdcd.source.catalog import Catalog
from cdcd.source.key_index import TableKeys
from cdcd.source.publication_catalog import PublishedTable

THREADS = 8
LIMIT_S = 60.0
_REPORTED_EVERY_S = 5.0
_CHECK_AGAIN = "run `cdcd check` again when the registry answers at its normal speed"
_KEY_EVENTS = {
    "key_schema_changed": "from the next row on, the topic's key has another schema",
    "key_added": "the next row is the topic's first record with a key",
}

_OUTAGES = (RegistryUnavailable, SinkUnavailable, SourceUnavailable)
"""They concern no table."""

HasRecords = Callable[[str], bool]
Report = Callable[[int, int], None]
"""Is called at intervals with the number of tables checked so far, and the number of all tables."""


def unreported(_done: int, _all: int) -> None:
    """Report nothing."""


@dataclass(slots=True)
class TopicResult:
    """The result of one topic. `events`: those of `Plans`, with their fields. `is_of_messages`: the message topic."""

    subject: str
    error: CdcdError | None = None
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    is_of_messages: bool = False


class _Asked:
    """A registry for `Plans` that reads and registers nothing."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._newest: dict[str, dict[str, Any] | None] = {}
        self.registered, self.registers = registry.registered, registry.registers

    def latest(self, subject: str) -> dict[str, Any] | None:
        self._newest[subject] = found = self._registry.newest(subject)
        return found

    def knows(self, subject: str, schema: Any) -> bool:
        return self._newest.get(subject) == schema or self._registry.knows(subject, schema)

    def schema_id(self, subject: str, schema: Any, *, is_forced: bool = False) -> int:
        if self._newest.get(subject) != schema:
            self._registry.judge(subject, schema, is_forced=is_forced)
        return 0


class _Listed:
    """The catalog for `Plans`, for one table whose keys are known."""

    def __init__(self, catalog: Catalog, table: PublishedTable | None) -> None:
        self.types, self.attnums = catalog.types, catalog.attnums
        self._table = table

    def keys(self, _relid: int) -> TableKeys | None:
        return None if self._table is None else self._table.keys


class _NoTopics:
    """Topics for `Plans` that exist: `check_topics` has checked them."""

    def __init__(self, has_records: HasRecords) -> None:
        self.has_records = has_records

    def ensure(self, names: Iterable[str]) -> dict[str, int]:
        return dict.fromkeys(names, 1)

    ensure_new = ensure


class SchemaDryRun:
    """Checks tables, one after the other in each of its threads."""

    def __init__(
        self,
        config: Config,
        schemas: Registry | SchemaTopic,
        has_records: HasRecords,
        closes: Callable[[], None] = lambda: None,
    ) -> None:
        """`schemas`: a SchemaTopic here is never written; its claims have no effect.

        `closes` is called when the last thread has ended, which may be after `run` has returned.
        """
        self._config = config
        self._policies = config.format.policies()
        self._catalog = Catalog(config.source_settings())
        self._closes = closes
        self._schemas = schemas
        self._topics = _NoTopics(has_records)
        self._cancelled = threading.Event()
        self._lock = threading.Lock()
        self._unforeseen: BaseException | None = None
        self._unavailable: CdcdError | None = None
        self._done: list[TopicResult] = []
        self._gone = 0
        self._working = 0

    def run(
        self,
        wanted: Mapping[str, PublishedTable | None],
        *,
        at_once: bool,
        threads: int = THREADS,
        limit_s: float = LIMIT_S,
        report: Report = unreported,
        pause_s: float = 0.0,
    ) -> list[Finding]:
        """Check topics, each with its table (None: cdcd's own); return the findings within the time limit.

        `at_once`: a start writes to all of them. `pause_s`: the pause after each, while others use the same servers.
        """
        waiting = iter(wanted.items())
        workers = [
            threading.Thread(target=self._work, args=(waiting, pause_s), name="cdcd-schemas", daemon=True)
            for _ in range(max(1, min(threads, len(wanted))))
        ]
        self._working = len(workers)
        for worker in workers:
            worker.start()
        self._await(workers, len(wanted), limit_s, report)
        if self._unforeseen is not None:
            raise self._unforeseen
        return self._findings(len(wanted) - self._gone, limit_s, at_once=at_once)

    def cancel(self) -> None:
        """Check no further table."""
        self._cancelled.set()

    # --- inside ---

    def _await(self, workers: list[threading.Thread], tables: int, limit_s: float, report: Report) -> None:
        ends_s = time.monotonic() + limit_s
        logged_s = time.monotonic()
        for worker in workers:
            while worker.is_alive() and (left_s := ends_s - time.monotonic()) > 0:
                worker.join(min(left_s, _REPORTED_EVERY_S))
                if worker.is_alive() and time.monotonic() - logged_s >= _REPORTED_EVERY_S:
                    logged_s = time.monotonic()
                    report(len(self._done), tables)
        self.cancel()

    def _work(self, waiting: Iterator[tuple[str, PublishedTable | None]], pause_s: float) -> None:
        try:
            self._try_each(waiting, pause_s)
        finally:
            with self._lock:
                self._working -= 1
                is_last = self._working == 0
            if is_last:  # a thread that still runs would open the connection again
                self._catalog.close()
                self._closes()

    def _try_each(self, waiting: Iterator[tuple[str, PublishedTable | None]], pause_s: float) -> None:
        while not self._cancelled.is_set():
            with self._lock:
                topic, table = next(waiting, ("", None))
            if not topic:
                return
            try:
                self._done.append(self._result_of(topic, table))
            except SnapshotStale:
                self._gone += 1  # dropped since it was listed
            except _OUTAGES as error:
                self._unavailable = error
                self.cancel()
            except BaseException as error:  # noqa: BLE001 - raised by `run`
                self._unforeseen = error
                self.cancel()
            self._cancelled.wait(pause_s)

    def _result_of(self, topic: str, table: PublishedTable | None) -> TopicResult:
        subject = f"topic {topic}" if table is None else f"table {table.schema}.{table.name}"
        result = TopicResult(subject, is_of_messages=topic == message_topic(self._config.name))
        plans = self._plans(result, table)
        try:
            if table is not None:
                plans.place(self._catalog.relation_of(table))
            elif result.is_of_messages:
                plans.place_messages()
            else:
                plans.place_transactions()
        except (*_OUTAGES, SnapshotStale):
            raise
        except CdcdError as error:
            result.error = error
        return result

    def _plans(self, result: TopicResult, table: PublishedTable | None) -> Plans:
        schemas = self._schemas
        return Plans(
            _Listed(self._catalog, table),
            self._topics,
            _Asked(schemas) if isinstance(schemas, Registry) else schemas,
            name=self._config.name,
            template=self._config.sink.topics.template,
            policies=self._policies,
            subjects=self._config.registry.subjects,
            incompatible=self._config.registry.incompatible,
            say=lambda event, **fields: result.events.append((event, fields)),
        )

    def _findings(self, topics: int, limit_s: float, *, at_once: bool) -> list[Finding]:
        done = sorted(self._done, key=lambda one: one.subject)
        found = [finding for one in done for finding in _findings_of(one, at_once=at_once)]
        left = topics - len(done)
        if self._unavailable is not None:
            reason, hint = self._unavailable.without_hint, self._unavailable.advice or _CHECK_AGAIN
            found.append(
                Finding("unknown", "schemas", f"{left} of {topics} topics not checked: {reason}", hint)
            )
        elif left:
            message = f"{left} of {topics} topics could not be checked within {limit_s:g} s"
            found.append(Finding("unknown", "schemas", message, _CHECK_AGAIN))
        return found or [Finding("ok", "schemas", f"the records of {topics} topics can be written")]


def _findings_of(result: TopicResult, *, at_once: bool) -> Iterator[Finding]:
    if result.error is not None:
        found = failure(result.subject, result.error)
        if result.is_of_messages:
            hint = (
                f"{found.hint}; if nothing calls pg_logical_emit_message, set source.protocol.messages: false"
            )
            yield Finding(
                "warn", found.subject, f"{found.message}; the first logical message would halt cdcd", hint
            )
        elif at_once:
            yield found
        else:
            yield replace(found, message=f"{found.message}; the next row would halt cdcd", at_row=True)
        return
    for event, fields in result.events:
        if event == "incompatible_schema":
            message = (
                f"{fields['reason']}; the next row goes to {fields['topic']} with its new schema nevertheless"
            )
            yield Finding(
                "warn",
                result.subject,
                message,
                "let the readers continue with that topic, or revert the change of the table",
            )
        elif event in ("key_schema_changed", "key_added"):
            message = _KEY_EVENTS[event]
            yield Finding("warn", result.subject, message, str(fields["hint"]))
