"""`python -m cdcd.spark verify`: print for each table whether the mirror has what the topics have.

In: the parsed arguments.  Out: lines of text, or one JSON document, on stdout; the exit status 0 for equal, 1 for a
difference, 2 for what cannot be known.
Must not: print a value of a row; print a key without --show-keys.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict

from cdcd.errors import EXIT_FAILURE, EXIT_OK, CdcdError
from cdcd.spark.commands.running import EXIT_UNKNOWN, connection_of, log, log_to
from cdcd.spark.mirroring.verify import KINDS, TableResult, verify, why
from cdcd.spark.session import is_of_spark, submitted_or_local


def run(options: argparse.Namespace) -> int:
    """Compare the mirror; return the exit status."""
    log_to(sys.stderr)
    try:
        results = _results(options)
    except Exception as error:
        if not (isinstance(error, CdcdError) or is_of_spark(error)):
            raise
        log.error("the mirror cannot be verified: %s", why(error))
        return EXIT_UNKNOWN
    if options.output == "json":
        print(json.dumps({"status": _whole(results), "tables": [asdict(one) for one in results]}))
    return {"equal": EXIT_OK, "differs": EXIT_FAILURE}.get(_whole(results), EXIT_UNKNOWN)


def _results(options: argparse.Namespace) -> list[TableResult]:
    connection = connection_of(options)
    results = []
    spark = submitted_or_local("cdcd verify", options.cores, options.memory)
    try:
        for one in verify(
            spark,
            connection,
            options.target,
            target_options=dict(options.target_option),
            tables=[name.strip() for name in options.table.split(",") if name.strip()],
            shows_keys=options.show_keys,
        ):
            results.append(one)
            if options.output == "text":
                print("\n".join(lines_of(one)), flush=True)
    finally:
        spark.stop()
    return results


def _whole(results: Iterable[TableResult]) -> str:
    """Return the status of all tables: a difference is certain, whatever cannot be known."""
    found = {one.status for one in results}
    return next((status for status in ("differs", "unknown") if status in found), "equal")


def lines_of(result: TableResult) -> Iterator[str]:
    """Return the text of one result."""
    if result.reason:
        yield f"{result.topic}: {result.status}: {result.reason}"
        return
    rows = f"{result.rows_in_topic} rows in the topic, {result.rows_in_mirror} in the mirror"
    if result.status == "equal":
        yield f"{result.topic}: equal, {rows}"
        return
    yield f"{result.topic}: differs, {rows}: " + ", ".join(
        f"{getattr(result, kind)} {kind}" for kind in KINDS
    )
    for kind, keys in (result.keys or {}).items():
        yield from (f"  {kind} {key}" for key in keys)
