"""The checks of a start that concern schemas: the registry or the schema topic, and each table's Avro schemas.

In: `StartContext`, after the tables are known.  Out: findings.
Must not: register a schema (F79).
"""

from __future__ import annotations

from cdcd.findings import Finding, refusal
from cdcd.registry.subjects import subject_of
from cdcd.schema.names import value_record
from cdcd.schema.schema_index import SchemaIndex
from cdcd.session.start_checks.context import StartContext
from cdcd.session.start_checks.schema_dry_run import SchemaDryRun
from cdcd.session.start_checks.topics import table_topics
from cdcd.sink.names import message_topic
from cdcd.sink.schemas import SchemaTopic
from cdcd.source.publication_catalog import PublishedTable


def check_registry(known: StartContext) -> list[Finding]:
    """Check that the registry, or the schema topic in its place, answers and would accept schemas."""
    if known.registry is None:
        where = known.config.schema_topic
        if where is None:
            return [Finding("ok", "registry", "it answered an earlier session")]
        known.schemas = _read_schemas(known, where)
        return [Finding("ok", "registry", f"none: schemas are stored in {where}, and served on admin.port")]
    names = table_topics(known, [])
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


def _read_schemas(known: StartContext, topic: str) -> SchemaTopic | None:
    """Return the content of the schema topic, None if this session does not read it. Raises SchemasUnreadable."""
    if known.sink is None or known.topics is None or not known.is_first:
        return None
    schemas = SchemaTopic(topic, known.source.slot, known.config.registry.compatibility)
    if known.topics.exists(topic):
        schemas.serve(known.sink, known.sink.operation_timeout_s)
    else:
        schemas.schema_index = SchemaIndex()
    return schemas


def check_schemas(known: StartContext) -> list[Finding]:
    """Check that each table's records could be written, by key and schemas, as the catalog is now.

    A table that is not written to before its next row does not refuse a start: the session logs the problem while it
    streams (`schema_warnings`), and halts at the row.
    """
    if known.schemas is None or not (known.may_run or (known.is_first and known.is_written_at_once)):
        return []
    topics, metadata = known.topics, known.metadata

    def has_records(name: str) -> bool:
        return topics is not None and name in metadata.topics and topics.has_records(name)

    dry_run = SchemaDryRun(known.config, known.schemas, has_records)
    return dry_run.run(table_topics(known, []), at_once=known.is_written_at_once, report=known.report)


def to_try_in_background(known: StartContext) -> dict[str, PublishedTable | None]:
    """Return the topics, each with its table, that the session is to check while it streams."""
    return table_topics(known, []) if known.is_first and not known.is_written_at_once else {}
