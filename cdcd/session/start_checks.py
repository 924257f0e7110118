"""What a start looks at before it changes anything: one judgement for the daemon, `cdcd check` and `cdcd init`.

In: `Known`: the configuration, who asks, and what the looks before have found.  Out: findings of each look.
Invariant: a look changes nothing and fences nobody (F79). What one look finds out the others use. The daemon raises
the first finding that fails, a check goes on to the next look and shows all of them: a look whose `needs` have failed
is "unknown", never left out. A daemon of this configuration that runs is no complaint: slot, stored position and
server are then read in the order in which they move, because what a daemon confirms is stored first (F3), and what
it stores the server has written first.
A new question is a function of `Known`, a row in `LOOKS`, and the same name in `start_order.ORDER`.
Everything here blocks and belongs in a thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cdcd.config import Config
from cdcd.errors import (
    CdcdError,
    Owned,
    ProgressUnreadable,
    SinkAuthorization,
    SlotActive,
    SlotAhead,
    SlotLost,
    SlotMissing,
    SlotUnusable,
    SourceMismatch,
    TopicMissing,
)
from cdcd.findings import Finding, failure, refusal
from cdcd.lsn import format_lsn
from cdcd.model import Progress, Timelines
from cdcd.pipeline.partial_transaction import check_numbers, numbered_by
from cdcd.recovery.start_decision import Resume, Snapshot, Wanted, check_ours, verdict
from cdcd.registry.confluent import Registry
from cdcd.registry.subjects import subject_of
from cdcd.schema.book import Book
from cdcd.schema.names import value_record
from cdcd.schema.policy import Policy
from cdcd.session.binary_columns import as_reason, text_columns
from cdcd.session.exact_keys import inexact_keys
from cdcd.session.queries import timelines_of
from cdcd.session.schema_trial import Report, Trial, unreported
from cdcd.sink.claims import Claims
from cdcd.sink.kept_topics import KeptTopics
from cdcd.sink.names import message_topic, own_topics, refuse_second_owner, topic_name, transaction_topic
from cdcd.sink.reader import peek, read_kept_topics
from cdcd.sink.schemas import SchemaTopic
from cdcd.sink.settings import SinkSettings
from cdcd.sink.topics import DEAD_LETTER_PROPERTIES, PROGRESS_PROPERTIES, SCHEMA_PROPERTIES, Topics
from cdcd.sink.transactional_id import check_transactional_id
from cdcd.source.catalog import Catalog
from cdcd.source.connection import connect_sql
from cdcd.source.identity import ServerIdentity, check_same_server, identify
from cdcd.source.key_check import record_key
from cdcd.source.locks import is_lock_timeout, lock_holders, set_lock_timeout
from cdcd.source.preflight import (
    connection_failure,
    holder_findings,
    publication_findings,
    server_findings,
    setup_findings,
    table_findings,
)
from cdcd.source.publication import LOCK_PATIENCE_MS, PublishedTable, missing_publications, published_tables
from cdcd.source.settings import SourceSettings
from cdcd.source.slot import SlotState, read_slot
from cdcd.source.start import quote_identifier
from cdcd.spill.preflight import check_folder
from cdcd.waits import Kind

FIRST_VERSION_WITH_MESSAGES = 140_000
OF_THE_SLOT = (SlotAhead, SlotLost, SlotMissing, SlotUnusable)
OF_THE_POSITION = (ProgressUnreadable, SinkAuthorization, SourceMismatch)
PATIENCE_S = 2.0
"""How long an undecided Kafka transaction is waited for: a commit's markers take a moment."""
_BY_HAND = "correct this first, then run `cdcd check` again"

Compare = Callable[[KeptTopics, bool, Any], list[Finding]]
"""What the publications have become since the record of the topics; `True`: all is copied anew. Over a connection."""


@dataclass(slots=True)
class Known:
    """Who asks, and what the looks have found so far.

    `is_beside`: a daemon may be running; that it holds the slot is no complaint. `registry`: None where there is none
    to ask. `is_first`: of this process's sessions; what costs much and was right then is not asked again.
    """

    config: Config
    source: SourceSettings
    open_sink: Callable[[], tuple[SinkSettings, Topics, Claims]]
    registry: Registry | None
    compare: Compare
    is_beside: bool
    lock_patience_ms: int
    create_slot: bool
    report: Report = unreported
    is_first: bool = True
    server: ServerIdentity | None = None
    sink: SinkSettings | None = None
    topics: Topics | None = None
    claims: Claims | None = None
    metadata: Any = None
    slot: SlotState | None = None
    stored: Progress | None = None
    timelines: Timelines | None = None
    verdict: Resume | Snapshot | None = None
    kept: KeptTopics | None = None
    tables: list[PublishedTable] | None = None
    schemas: Registry | SchemaTopic | None = None
    is_transaction_known: bool = False
    shared: Owned | None = None
    text_columns: list[Any] = field(default_factory=list)
    _connection: Any = None

    def sql(self) -> Any:
        """Return the one connection of all looks: what is compared is of one server (F59). Raises Source errors."""
        if self._connection is None:
            self._connection = connect_sql(self.source)
            set_lock_timeout(self._connection, self.lock_patience_ms)
        return self._connection

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @property
    def is_anew(self) -> bool:
        """Whether all tables are to be copied; also where that could not be found out."""
        return self.config.snapshot.mode == "initial" and not isinstance(self.verdict, Resume)

    @property
    def is_written_at_once(self) -> bool:
        """Whether a start makes the plan of each table before it streams: for the copy, or to mark a gap."""
        return self.is_anew or (self.stored is not None and self.stored.gap is not None)

    def policy_of(self, table: str) -> Policy:
        """What the configuration says of `schema.table`."""
        return self.config.format.policies().table(table)


@dataclass(frozen=True, slots=True)
class Look:
    """One question. `needs`: the looks without whose answers it cannot be asked.

    `server`: what is waited for meanwhile, besides PostgreSQL. `answers`: the waits that are over once it does not
    refuse.
    """

    name: str
    ask: Callable[[Known], list[Finding]]
    needs: tuple[str, ...] = ()
    server: Kind | None = None
    answers: tuple[Kind, ...] = ("source",)


def each(known: Known, looks: Sequence[Look] | None = None) -> Iterator[tuple[Look, list[Finding]]]:
    """Yield the findings of each look, in order; what a look meets is its finding. Does not raise cdcd's errors."""
    failed: dict[str, str] = {}
    for look in LOOKS if looks is None else looks:
        missing = next((failed[need] for need in look.needs if need in failed), None)
        if missing is not None:
            failed[look.name] = missing
            yield look, [Finding("unknown", look.name, f"not looked at, because of: {missing}", _BY_HAND)]
            continue
        findings, has_answer = asked(look, known)
        if not has_answer:
            failed[look.name] = next(one.subject for one in findings if one.level == "fail")
        yield look, findings


def asked(look: Look, known: Known) -> tuple[list[Finding], bool]:
    """Return the findings of one look, and whether it has found out what others need."""
    try:
        return look.ask(known), True
    except CdcdError as error:
        if is_lock_timeout(error):
            return [_locked(look, known, error)], True
        return [_met(look, error)], False


def _met(look: Look, error: CdcdError) -> Finding:
    if look.name == "server":
        return connection_failure(error)
    if isinstance(error, OF_THE_SLOT):
        return failure("slot", error)
    if isinstance(error, OF_THE_POSITION) and look.name in ("position", "published"):
        return failure("stored position", error)
    return failure(look.name, error)


def _locked(look: Look, known: Known, error: CdcdError) -> Finding:
    holders = lock_holders(known.sql()) or f"{error.message}; nobody holds a lock any more"
    mend = "have whoever runs that transaction end it, or wait for it, then look again"
    message = f"could not be looked at within {known.lock_patience_ms} ms: {holders}"
    # Whoever holds one for that long is not waited for as long by each look that follows.
    known.lock_patience_ms = min(known.lock_patience_ms, LOCK_PATIENCE_MS)
    set_lock_timeout(known.sql(), known.lock_patience_ms)
    return Finding("unknown", look.name, message, mend)


# --- the looks ---


def _server(known: Known) -> list[Finding]:
    known.server = identify(known.sql())
    return list(server_findings(known.server))


def _publications(known: Known) -> list[Finding]:
    missing = missing_publications(known.sql(), known.source.publications)
    may_create = known.config.source.publication.create
    return list(publication_findings(known.source, missing, may_create=may_create))


def _kafka(known: Known) -> list[Finding]:
    known.sink, known.topics, known.claims = known.open_sink()
    known.metadata = known.topics.reach()
    brokers = len(known.metadata.brokers)
    return [Finding("ok", "kafka", f"cluster {known.metadata.cluster_id} answers, {brokers} brokers")]


def _position(known: Known) -> list[Finding]:
    if known.server is not None and known.server.in_recovery:
        message = "where it would begin is not known: a standby's slots cannot be read"
        return [Finding("unknown", "start", message, "look again at the primary")]
    try:
        finding = position(known)
    except (*OF_THE_SLOT, *OF_THE_POSITION):
        if not known.is_beside:
            raise
        # A daemon at its first start makes slot and position one after the other: once more, after it.
        finding = position(known)
    known.kept = kept = _kept(known)
    assert known.topics is not None
    known.topics.kept = kept  # what the look at the topics compares with
    return [*_holder(known), finding]


def position(known: Known) -> Finding:
    """Find where a start would begin. Raises what it would be refused with."""
    connection = known.sql()
    expected = known.server
    known.slot = slot = read_slot(connection, known.source.slot)
    known.stored, is_final = _peeked(known)
    if expected is not None:
        check_same_server(connection, expected)
    known.server = identify(connection)
    known.timelines = timelines_of(known.source, known.server)
    try:
        if slot is not None and slot.active and not known.is_beside:
            check_ours(slot, known.server, known.source.slot)
            raise slot_held(known.source.slot, slot.active_pid)
        known.verdict = decided(known, known.stored, slot)
    except OF_THE_SLOT as error:
        if is_final:
            raise
        return _undecided(f"{error.code}: {error.message}", "unknown")
    said = _told(known.verdict, known.config)
    return Finding("ok", "start", said) if is_final else _undecided(said, "warn")


def decided(known: Known, stored: Progress | None, slot: SlotState | None) -> Resume | Snapshot:
    """Return the verdict of `start_decision` on what was read. Raises what a start would be refused with."""
    assert known.server is not None
    assert known.timelines is not None
    if slot is not None and known.is_beside:
        slot = replace(slot, active=False)  # a daemon that runs holds it, which is no complaint
    wanted = replace(wanted_of(known.config), create_slot=known.create_slot)
    found = verdict(stored, slot, known.server, wanted, known.timelines.left)
    if stored is not None and isinstance(found, Resume):
        check_numbers(stored.part, numbered_by(known.config))
    return found


def slot_held(slot: str, pid: int | None) -> SlotActive:
    """Return the error of a slot that another walsender holds: the slot is the lock (F69)."""
    return SlotActive(
        "another walsender holds the slot",
        slot=slot,
        pid=pid,
    )


def _peeked(known: Known) -> tuple[Progress | None, bool]:
    assert known.sink is not None
    if known.config.progress_topic not in known.metadata.topics:
        return None, True
    try:
        return peek(known.sink, PATIENCE_S)
    except TopicMissing:
        return None, True


def _undecided(what: str, level: Any) -> Finding:
    message = f"where it would begin is not known; by what is committed now: {what}"
    mend = "another producer's open transaction in the progress topic is in the way: look again when it has ended"
    return Finding(level, "start", message, mend)


def _kept(known: Known) -> KeptTopics:
    """Return what the records count on in their topics: nothing of it where all tables are copied anew."""
    assert known.sink is not None
    at = -1 if known.stored is None else known.stored.topics_at
    kept = read_kept_topics(known.sink, at)
    if isinstance(known.verdict, Snapshot):
        kept.leave()
    return kept


def _holder(known: Known) -> list[Finding]:
    if known.slot is not None:
        return list(holder_findings(known.sql(), known.source, known.slot))
    return [Finding("ok", "slot", f"slot {known.source.slot} does not exist yet and will be created")]


def _told(begin: Resume | Snapshot, config: Config) -> str:
    if isinstance(begin, Resume):
        return f"goes on from {format_lsn(begin.start_lsn)}"
    if config.snapshot.mode == "never":
        return "makes the slot and begins there, without a snapshot"
    again = " anew: one was cut off" if begin.begun_topics or begin.drop_slot else ""
    return f"makes the slot and takes the snapshot{again}"


def _setup(known: Known) -> list[Finding]:
    assert known.server is not None
    connection = known.sql()
    return list(
        setup_findings(
            known.source,
            connection,
            known.server,
            read_slot(connection, known.source.slot) if known.slot is None else known.slot,
            drops_slot=isinstance(known.verdict, Snapshot) and known.verdict.drop_slot,
            wanted=known.config.wanted_options,
            heartbeat=known.config.source.heartbeat_interval_ms > 0,
            limits_wal=known.config.source.wal_guard.give_up is not None,
        )
    )


def _published(known: Known) -> list[Finding]:
    if known.kept is None:
        return [Finding("unknown", "published", "not compared: the position is not known", _BY_HAND)]
    found = known.compare(known.kept, isinstance(known.verdict, Snapshot), known.sql())
    return found or [
        Finding("ok", "published", "what is published is as it was when records were last written")
    ]


def _tables(known: Known) -> list[Finding]:
    connection = known.sql()
    known.tables = tables = published_tables(connection, known.source.publications)
    policies = known.config.format.policies()
    findings = list(table_findings(connection, tables, snapshot=known.is_anew, policy_of=policies.table))
    if not tables:
        name = quote_identifier(known.source.publications[0])
        mend = f"ALTER PUBLICATION {name} ADD TABLE schema.table"
        findings.append(Finding("warn", "publication", "the publications have no tables", mend))
    if known.config.source.protocol.binary:
        findings += _binary(known, tables)
    catalog = Catalog(known.source)
    with contextlib.closing(catalog):
        findings += inexact_keys(tables, catalog, policies)
    return findings or [Finding("ok", "tables", f"{len(tables)} tables are published")]


def _binary(known: Known, tables: list[PublishedTable]) -> list[Finding]:
    catalog = Catalog(known.source)
    try:
        known.text_columns = columns = text_columns(tables, catalog, known.config.format.policies())
    finally:
        catalog.close()
    if not columns:
        return []
    option = "source.protocol.binary"
    message = f"it is left out: {as_reason(columns)}"
    return [Finding("warn", option, message, f"{option}: false says that this is known")]


def _topics(known: Known) -> list[Finding]:
    findings: list[Finding] = []
    names = _names(known, findings)
    keyless = {topic for topic, table in names.items() if table is not None and _is_keyless(known, table)}
    own = own_topic_properties(known.config)
    assert known.topics is not None
    found = known.topics.check(known.metadata, names, own, keyless=sorted(keyless), describes=known.is_first)
    return findings + [_not_needed_by_all(finding, known.config) for finding in found]


def topic_names(
    config: Config, tables: Iterable[PublishedTable], version_num: int, refused: list[Finding] | None = None
) -> dict[str, PublishedTable | None]:
    """Return the topics that will be written to, each with its table; None: that of messages or transactions.

    A table that can have none, or only another one's (F66), goes to `refused`; without that its error is raised.
    """
    names: dict[str, PublishedTable | None] = {}
    owners = dict.fromkeys(own_topics(config.name), ("cdcd", "itself"))
    template = config.sink.topics.template
    for table in tables:
        try:
            topic = topic_name(template, name=config.name, schema=table.schema, table=table.name)
            refuse_second_owner(owners, topic, (table.schema, table.name))
        except CdcdError as error:
            if refused is None:
                raise
            refused.append(failure(f"table {table.schema}.{table.name}", error))
        else:
            names[topic] = table
    if config.source.protocol.messages and version_num >= FIRST_VERSION_WITH_MESSAGES:
        names[message_topic(config.name)] = None
    if config.format.transactions:
        names[transaction_topic(config.name)] = None
    return names


def written_topics(known: Known) -> list[str]:
    """Return the topics that will be written to, cdcd's own too, as far as that could be found out."""
    return [*_names(known, []), *own_topic_properties(known.config)]


def _names(known: Known, refused: list[Finding]) -> dict[str, PublishedTable | None]:
    """Return the topics that will be written to, of what could be found out; the look at the tables says the rest."""
    if known.server is None:
        return {}
    return topic_names(known.config, known.tables or (), known.server.version_num, refused)


def own_topic_properties(config: Config) -> dict[str, Mapping[str, str]]:
    """Return the topics with one partition that cdcd keeps its own records in, with their settings."""
    own = {config.progress_topic: PROGRESS_PROPERTIES}
    if config.schema_topic is not None:
        own[config.schema_topic] = SCHEMA_PROPERTIES
    if config.dead_letter_topic is not None:
        own[config.dead_letter_topic] = DEAD_LETTER_PROPERTIES
    return own


def _is_keyless(known: Known, table: PublishedTable) -> bool:
    return not record_key(table, known.policy_of(f"{table.schema}.{table.name}"))


def _not_needed_by_all(finding: Finding, config: Config) -> Finding:
    """Nobody halts for the topic of the logical messages before somebody writes one."""
    if finding.level != "fail" or finding.subject != f"topic {message_topic(config.name)}":
        return finding
    mend = f"{finding.mend}; if nothing calls pg_logical_emit_message, source.protocol.messages: false"
    message = f"{finding.message}; the first logical message would halt cdcd"
    return Finding("warn", finding.subject, message, mend)


def _owners(known: Known) -> list[Finding]:
    """Whether every topic that a start would write to is its own (F80), as far as the tables are known by now.

    One that nobody could name yet is asked about before it is made (`Topics.ensure`).
    """
    assert known.claims is not None
    if _drops_what_it_never_made(known):
        assert known.server is not None
        known.claims.refuse_slot_of_another(known.server.system_identifier, known.server.database)
    known.shared = shared = known.claims.refuse_owned(written_topics(known))
    if shared is not None:
        return [Finding("warn", "owners", shared.message, shared.advice)]
    return [Finding("ok", "owners", "no other slot writes to these topics")]


def _drops_what_it_never_made(known: Known) -> bool:
    """Whether a start that was cut off would make the slot anew, and no record says that it had made one."""
    begin, stored = known.verdict, known.stored
    return (
        isinstance(begin, Snapshot)
        and begin.drop_slot
        and stored is not None
        and not stored.identity.slot_lsn
    )


def _transactions(known: Known) -> list[Finding]:
    assert known.topics is not None
    assert known.sink is not None
    if not known.sink.is_exactly_once or not known.is_first:
        return []
    used = "" if known.stored is None else known.stored.transactional_id
    if used == known.sink.transactional_id and not known.is_beside:
        return []  # the position was written under it; to find its coordinator may take half a second
    found = check_transactional_id(known.sink, known.topics.longest_transaction_ms(known.metadata))
    known.is_transaction_known = found is not None
    return [] if found is None else [found]


def _registry(known: Known) -> list[Finding]:
    if known.registry is None:
        where = known.config.schema_topic
        if where is None:
            return [Finding("ok", "registry", "it has answered before")]
        known.schemas = _read_schemas(known, where)
        return [Finding("ok", "registry", f"none: schemas are kept in {where}, and served on admin.port")]
    names = _names(known, [])
    topic, table = next(iter(names.items()), (message_topic(known.config.name), None))
    subject = f"{topic}-value"
    if table is not None:
        policy = known.config.format.policies().table(f"{table.schema}.{table.name}")
        record = value_record(known.config.name, table.schema, table.name, is_flat=policy.value == "flat")
        subject = subject_of(known.config.registry.subjects, topic, "value", record)
    findings = known.registry.check(subject)
    error = refusal(findings)
    if error is not None:
        raise error
    known.schemas = known.registry
    return findings


def _read_schemas(known: Known, topic: str) -> SchemaTopic | None:
    """Return what the schema topic holds, None where that is not asked again. Raises SchemasUnreadable."""
    if known.sink is None or known.metadata is None or not known.is_first:
        return None
    schemas = SchemaTopic(topic, known.source.slot, known.config.registry.compatibility)
    if topic in known.metadata.topics:
        schemas.serve(known.sink, known.sink.operation_timeout_s)
    else:
        schemas.book = Book()
    return schemas


def _schemas(known: Known) -> list[Finding]:
    """Whether each table's records could be written, by key and schemas, as far as the catalog of now says.

    Where a table is not written to before it gets a row, a start is not refused for it: it says so beside the stream
    (`session`), and the row ends it.
    """
    if known.schemas is None or not (known.is_beside or (known.is_first and known.is_written_at_once)):
        return []
    topics, metadata = known.topics, known.metadata

    def has_records(name: str) -> bool:
        return topics is not None and name in metadata.topics and topics.has_records(name)

    trial = Trial(known.config, known.schemas, has_records)
    return trial.run(_names(known, []), at_once=known.is_written_at_once, report=known.report)


def to_try_beside(known: Known) -> dict[str, PublishedTable | None]:
    """Return the topics, each with its table, about which a start has not asked: nobody waits for the answer."""
    return _names(known, []) if known.is_first and not known.is_written_at_once else {}


def _spill(known: Known) -> list[Finding]:
    return [check_folder(known.config.spill_settings())]


LOOKS: tuple[Look, ...] = (
    Look("server", _server),
    Look("publications", _publications, ("server",)),
    Look("kafka", _kafka, server="kafka", answers=("kafka",)),
    Look("position", _position, ("server", "kafka"), "kafka", ("slot_held", "promotion")),
    Look("setup", _setup, ("server",)),
    Look("published", _published, ("position",)),
    Look("tables", _tables, ("server",)),
    Look("owners", _owners, ("kafka",), "kafka"),
    Look("topics", _topics, ("kafka",), "kafka"),
    Look("transactional id", _transactions, ("kafka",), "kafka"),
    Look("registry", _registry, (), "registry", ("registry",)),
    Look("schemas", _schemas, ("tables", "registry"), "registry", ("registry",)),
    Look("spill folder", _spill),
)
"""All of them, in the order of `start_order.ORDER`."""


def claims_of(config: Config, settings: SinkSettings) -> Claims:
    """Return what asks whose topics are."""
    return Claims(settings, config.sink.topics.shared_with)


def wanted_of(config: Config) -> Wanted:
    """Return what the configuration says about the slot and the beginning."""
    return Wanted(
        slot=config.source.slot.name,
        create_slot=config.source.slot.create,
        snapshot=config.snapshot.mode == "initial",
        two_phase=config.source.protocol.two_phase,
    )
