"""`python -m cdcd.spark status`: the position of a mirror, its age, and the state of its tables.

In: the parsed arguments.  Out: lines of text, or one JSON document; the exit status.
Invariant: what is not known is "unknown" or null, never 0.
Must not: read rows; start Spark.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from cdcd.errors import EXIT_FAILURE, EXIT_OK, CdcdError
from cdcd.lsn import format_lsn
from cdcd.redaction import clean
from cdcd.spark.commands.running import EXIT_UNKNOWN, log, log_to
from cdcd.spark.reading.catalog_state import CatalogState, read_state
from cdcd.spark.reading.mirror import Mirror, read_mirror
from cdcd.spark.target.versions import TableEntry


def run(options: argparse.Namespace) -> int:
    """Show the status; return the exit status."""
    log_to(sys.stderr)
    try:
        opened = read_mirror(options.target, dict(options.target_option))
        found = status_of(opened, time.time())
    except CdcdError as error:
        log.error("the mirror cannot be read: %s", error)
        return EXIT_UNKNOWN
    print(json.dumps(found) if options.output == "json" else "\n".join(map(clean, _lines(found))))
    return EXIT_FAILURE if opened.parked else EXIT_OK


def status_of(opened: Mirror, now_s: float) -> dict[str, Any]:
    """Return the status of a mirror as of a time (Unix epoch, seconds)."""
    version = opened.version
    at = opened.commit_time
    return {
        "target": opened.target.uri,
        "prefix": version.prefix,
        "version": version.number,
        "format": version.table_format,
        "end_lsn": format_lsn(version.end_lsn) if version.end_lsn else None,
        "slots": {
            slot: {
                "end_lsn": format_lsn(one.end_lsn) if one.end_lsn else None,
                "timeline": one.timeline or None,
            }
            for slot, one in sorted(version.positions.items())
        },
        "commit_lsn": format_lsn(version.commit_lsn) if version.commit_lsn else None,
        "commit_time": None if at is None else at.isoformat(),
        "published_age_s": round(now_s - version.published_s, 3),
        "catalog": _catalog(read_state(opened.target)),
        "tables": {topic: _table(opened, entry) for topic, entry in sorted(version.tables.items())},
    }


def _table(opened: Mirror, entry: TableEntry) -> dict[str, Any]:
    parked = entry.parked
    state = "parked" if parked else "loading" if entry.topic in opened.version.loading else "updated"
    return {
        "state": state,
        "reason": None if parked is None else parked.reason,
        "files": len(entry.files) + len(entry.deltas),
        "table_version": entry.table_version,
        "columns": [one.name for one in entry.fields],
    }


def _catalog(state: CatalogState | None) -> dict[str, Any] | None:
    """Return what is registered in a catalog, None if it was never tried."""
    if state is None:
        return None
    return {
        "name": state.catalog,
        "tried": datetime.fromtimestamp(state.tried_s, UTC).isoformat(),
        "registered": sorted(topic for topic, one in state.tables.items() if not one.error),
        "errors": state.errors,
    }


def _lines(found: dict[str, Any]) -> Iterator[str]:
    yield f"target      {found['target']}"
    yield f"prefix      {found['prefix']}"
    yield f"version     {found['version']}, published {found['published_age_s']:.1f} s ago"
    yield f"position    {found['end_lsn'] or 'unknown'}, last commit at {found['commit_time'] or 'unknown'}"
    for slot, one in found["slots"].items():
        yield f"slot        {slot}, {one['end_lsn'] or 'unknown'}, timeline {one['timeline'] or 'unknown'}"
    if catalog := found["catalog"]:
        yield f"catalog     {catalog['name']}, {len(catalog['registered'])} tables, tried at {catalog['tried']}"
        yield from (f"not registered: {topic}: {error}" for topic, error in sorted(catalog["errors"].items()))
    for topic, table in found["tables"].items():
        reason = f": {table['reason']}" if table["reason"] else ""
        yield f"{table['state']:<11} {topic}, {table['files']} files{reason}"
