"""`python -m cdcd.spark verify`: print for each table whether the mirror has what the topics have.

In: the parsed arguments.  Out: lines of text, or one JSON document, on stdout; the exit status 0 for equal, 1 for a
difference, 2 for what cannot be known.
Must not: print a value of a row; print a key without --show-keys.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict

from cdcd.errors import EXIT_FAILURE, EXIT_OK
from cdcd.spark.commands.running import EXIT_UNKNOWN, connection_of, log, log_to
from cdcd.spark.mirroring.verify import KINDS, TableResult, verify, why
from cdcd.spark.session import NO_LOG, submitted_or_local
from cdcd.spark.source.table_options import split_names


def run(options: argparse.Namespace) -> int:
    """Compare the mirror; return the exit status."""
    log_to(sys.stderr)
    results: list[TableResult] = []
    failure = ""
    try:
        _add_results(options, results)
    except Exception as error:  # noqa: BLE001 - what was found before is to be printed
        failure = why(error)
        log.error("the mirror cannot be verified: %s", failure)
    status = _whole(results, is_complete=not failure)
    if options.output == "json" and (results or not failure):
        page = {"status": status, "tables": [asdict(one) for one in results]}
        print(json.dumps(page | ({"errors": [failure]} if failure else {})))
    return {"equal": EXIT_OK, "differs": EXIT_FAILURE}.get(status, EXIT_UNKNOWN)


def _add_results(options: argparse.Namespace, results: list[TableResult]) -> None:
    connection = connection_of(options)
    spark = submitted_or_local("cdcd verify", options.cores, options.memory, NO_LOG)
    try:
        for one in verify(
            spark,
            connection,
            options.target,
            target_options=dict(options.target_option),
            tables=split_names(options.table),
            shows_keys=options.show_keys,
        ):
            results.append(one)
            if options.output == "text":
                print("\n".join(lines_of(one)), flush=True)
    finally:
        with contextlib.suppress(Exception):  # a JVM that has ended, too, is stopped
            spark.stop()


def _whole(results: Iterable[TableResult], *, is_complete: bool) -> str:
    """Return the status of all tables: a difference is certain, whatever cannot be known."""
    found = {one.status for one in results} | (set() if is_complete else {"unknown"})
    return next((status for status in ("differs", "unknown") if status in found), "equal")


def lines_of(result: TableResult) -> Iterator[str]:
    """Return the text of one result."""
    counts = {kind: getattr(result, kind) for kind in KINDS}
    if result.reason and not any(counts.values()):
        yield f"{result.topic}: {result.status}: {result.reason}"
        return
    rows = f"{result.rows_in_topic} rows in the topic, {result.rows_in_mirror} in the mirror"
    if result.status == "equal":
        yield f"{result.topic}: equal, {rows}"
        return
    found = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    unknown = f", {result.unknown_rows} of unknown state" if result.unknown_rows else ""
    reason = f"; {result.reason}" if result.reason else ""
    yield f"{result.topic}: differs, {rows}: {found}{unknown}{reason}"
    for kind, keys in (result.keys or {}).items():
        yield from (f"  {kind} {key}" for key in keys)
