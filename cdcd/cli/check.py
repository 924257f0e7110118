"""`cdcd check`: every endpoint asked what a start would meet, all of it at once.

Comes in: a configuration.  Goes out: findings, and their text with the SQL or command that mends each.
Invariant: an endpoint that fails never keeps another from being tried; nothing is changed anywhere.
Must not: know how a check is made; each room knows its own.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Sequence
from dataclasses import replace

from cdcd.cli.beginning import Beginning, beginning, unknown
from cdcd.cli.published import asking_settings, own_topics, published_topics
from cdcd.cli.renamed import renamed_tables
from cdcd.config import Config
from cdcd.errors import CdcdError, SourceAuthentication, SourceUnavailable
from cdcd.findings import Finding
from cdcd.redaction import clean, escape
from cdcd.registry.confluent import Registry
from cdcd.runtime.binary import as_reason, text_columns
from cdcd.runtime.ownership import claims_of, refuse_owned
from cdcd.runtime.recovery import Resume
from cdcd.sink.names import message_topic
from cdcd.sink.topics import Topics
from cdcd.sink.transactional_id import check_transactional_id
from cdcd.source.catalog import Catalog
from cdcd.source.preflight import preflight
from cdcd.spill.preflight import check_folder

_VERIFYING = ("verify-ca", "verify-full")
_LOCAL_HOSTS = ("", "localhost", "127.0.0.1", "::1")
_BINARY = "source.protocol.binary"


def check(config: Config) -> list[Finding]:
    """Return what was found, in the order of the flow: files, source, sink, registry. Does not raise."""
    sink = _tried("kafka", lambda: _sink(config))
    begin = _beginning(config, is_kafka_up=not _fails(sink, "kafka"))
    source = _tried("source", lambda: _source(config, begin))
    return [
        *_files(config),
        *_encryption(config),
        check_folder(config.spill_settings()),
        *_with_beginning(source, begin.finding),
        *_tried("publication", lambda: [] if _fails(sink, "kafka") else renamed_tables(config)),
        *_tried(_BINARY, lambda: _text_columns(config)),
        *sink,
        *_tried("registry", lambda: _registry(config)),
    ]


def has_failed(findings: Sequence[Finding]) -> bool:
    """Whether a start would fail."""
    return any(finding.level == "fail" for finding in findings)


def as_text(findings: Sequence[Finding]) -> str:
    """Return an aligned list, each complaint followed by what mends it, and a last line that counts."""
    width = max((len(escape(finding.subject)) for finding in findings), default=0)
    lines = []
    for finding in findings:
        lines.append(f"{finding.level:<4}  {escape(finding.subject):<{width}}  {finding.message}")
        lines += [f"      {'':<{width}}  -> {line}" for line in finding.mend.splitlines()]
    counts = [sum(finding.level == level for finding in findings) for level in ("ok", "warn", "fail")]
    lines.append("{} ok, {} warn, {} fail".format(*counts))
    return "\n".join(map(clean, lines))


def _tried(subject: str, ask: Callable[[], list[Finding]]) -> list[Finding]:
    try:
        return ask()
    except CdcdError as error:
        return [Finding("fail", subject, error.message, error.advice or "mend this first, then check again")]
    except Exception as error:  # noqa: BLE001 - the other endpoints are still to be asked
        # a client library's text may repeat a value it was given, so only its class is told
        message = f"the client refused its settings or failed: {type(error).__name__}"
        return [Finding("fail", subject, message, f"look through the options of {subject}")]


def _files(config: Config) -> list[Finding]:
    return [
        Finding(
            "warn", f"file {path}", "a secret that every user of this machine can read", f"chmod o= {path}"
        )
        for path in config.secret_files
        if path.stat().st_mode & stat.S_IROTH
    ]


def _encryption(config: Config) -> list[Finding]:
    parameters = config.source.dsn.parameters
    hosts = parameters.get("host", "").split(",")
    is_local = all(host in _LOCAL_HOSTS or host.startswith("/") for host in hosts)
    if is_local or parameters.get("sslmode") in _VERIFYING:
        return []
    message = "the server's certificate is not verified, so anybody on the way can read and answer"
    return [Finding("warn", "source.dsn", message, "add sslmode=verify-full")]


def _beginning(config: Config, *, is_kafka_up: bool) -> Beginning:
    if not is_kafka_up:
        return Beginning(None, unknown("Kafka has the stored position and does not answer"))
    try:
        return beginning(config)
    except Exception as error:  # noqa: BLE001 - the other endpoints are still to be asked
        return Beginning(None, unknown(f"a client failed: {type(error).__name__}"))


def _source(config: Config, begin: Beginning) -> list[Finding]:
    return preflight(
        config.source_settings(),
        slot_create=config.source.slot.create,
        publication_create=config.source.publication.create,
        snapshot=config.snapshot.mode == "initial" and not isinstance(begin.verdict, Resume),
        wanted=config.wanted_options,
        policy_of=config.format.policies().table,
        heartbeat=config.source.heartbeat_interval_ms > 0,
    )


def _text_columns(config: Config) -> list[Finding]:
    """Columns for which a start leaves binary out; what fails to connect has been told by then."""
    if not config.source.protocol.binary:
        return []
    settings = config.source_settings()
    catalog = Catalog(settings)
    try:
        columns = text_columns(settings, catalog, config.format.policies())
    except (SourceUnavailable, SourceAuthentication):
        return []
    finally:
        catalog.close()
    if not columns:
        return []
    message = f"it is left out: {as_reason(columns)}"
    return [Finding("warn", _BINARY, message, f"{_BINARY}: false says that this is known")]


def _with_beginning(source: list[Finding], begin: Finding) -> list[Finding]:
    """Add how a start would begin; where that is about the slot, it knows more than the slot alone says."""
    if begin.subject == "slot":
        source = [finding for finding in source if finding.subject != "slot" or finding.level == "warn"]
    return [*source, begin]


def _fails(findings: Sequence[Finding], subject: str) -> bool:
    return any(finding.subject == subject and finding.level == "fail" for finding in findings)


def _sink(config: Config) -> list[Finding]:
    settings = asking_settings(config)
    try:
        topics = published_topics(config)
    except CdcdError:
        topics = []  # the source's own findings say why; the broker is asked all the same
    asked = Topics(settings, config.topic_settings())
    findings = asked.check(topics, own_topics(config))
    findings = [_with_way_out(finding, config) for finding in findings]
    if topics and not _fails(findings, "kafka"):
        findings.append(_owners(config))
    if settings.is_exactly_once and not _fails(findings, "kafka"):
        findings.append(check_transactional_id(settings))
    return findings


def _owners(config: Config) -> Finding:
    """Whether a start would be refused because another slot writes to the same topics."""
    subject = "owner of the topics"
    try:
        shared = refuse_owned(config, claims_of(config, asking_settings(config)))
    except CdcdError as error:
        return Finding(
            "fail", subject, f"{error.code}: {error.message}", error.advice or "correct this first"
        )
    if shared is not None:
        return Finding("warn", subject, shared.message, shared.advice)
    return Finding("ok", subject, "no other slot writes to them")


def _registry(config: Config) -> list[Finding]:
    topic = config.schema_topic
    if topic is None:
        return Registry(config.registry_settings()).check()
    return [Finding("ok", "registry", f"none: schemas are kept in {topic}, and served on admin.port")]


def _with_way_out(finding: Finding, config: Config) -> Finding:
    """The topic of logical messages is not needed by everybody."""
    if finding.level == "ok" or finding.subject != f"topic {message_topic(config.name)}":
        return finding
    way_out = "if nothing calls pg_logical_emit_message, source.protocol.messages: false"
    return replace(finding, mend=f"{finding.mend}; {way_out}")
