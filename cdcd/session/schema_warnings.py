"""Warn, while the session streams, of tables whose next row would halt the daemon: they do not refuse a start.

In: the tables that a start has listed.  Out: `table_will_halt` in the log, once for each, at most MOST_LINES.
Invariant: nothing waits for this task; it checks slowly, over connections of its own, so that it does not slow down
the stream.
Must not: end the session before a row has the problem, or store a table's schemas in the daemon's own cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import structlog

from cdcd.config import Config
from cdcd.findings import Finding
from cdcd.registry.confluent import Registry
from cdcd.session.start_checks.schema_dry_run import HasRecords, SchemaDryRun
from cdcd.sink.schemas import SchemaTopic
from cdcd.source.publication_catalog import PublishedTable
from cdcd.threads import in_thread

MOST_LINES = 50
_PAUSE_S = 0.02
_LIMIT_S = 3600.0
_LOG = structlog.stdlib.get_logger("cdcd.schemas")


async def warn_of_halts(
    config: Config,
    wanted: Mapping[str, PublishedTable | None],
    own: Registry | SchemaTopic,
    has_records: HasRecords,
) -> None:
    """Check topics, each with its table, once. `own`: the daemon's own schemas, which are not changed."""
    if not wanted:
        return
    apart = _apart(config, own)
    dry_run = SchemaDryRun(config, apart, has_records, apart.close)
    ask = partial(dry_run.run, wanted, at_once=False, threads=1, limit_s=_LIMIT_S, pause_s=_PAUSE_S)
    try:
        findings = await in_thread(ask)
    finally:
        dry_run.cancel()
    _say([one for one in findings if one.level == "fail"])
    for one in findings:
        if one.level == "unknown":
            _LOG.info("check_inconclusive", subject=one.subject, reason=one.message, hint=one.hint)


def _apart(config: Config, own: Registry | SchemaTopic) -> Registry | SchemaTopic:
    if isinstance(own, Registry):
        return Registry(config.registry_settings())
    apart = SchemaTopic(str(config.schema_topic), config.source.slot.name, config.registry.compatibility)
    apart.schema_index = own.schema_index
    return apart


def _say(failing: list[Finding]) -> None:
    for one in failing[:MOST_LINES]:
        _LOG.warning("table_will_halt", subject=one.subject, code=one.code, reason=one.message, hint=one.hint)
    if len(failing) > MOST_LINES:
        more = len(failing) - MOST_LINES
        _LOG.warning("tables_will_halt", more=more, hint="`cdcd check` names all of them")
