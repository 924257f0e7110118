"""`cdcd verify`: compare the topics with the source while both change.

In: a configuration, options.  Out: lines or JSON on standard output, progress on standard error, an exit status.
Invariant: status 0 only if every chosen table is equal; 1 if one differs; 2 if one could not be compared, and none
differs, whatever the error was. What was found before an error is printed, and is in the metrics. With a folder for
the state an interrupted run continues: finished tables are not compared again.
Must not: print a row's value, also none in an error; print a key unless it is asked for.
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from cdcd.cli.output import ascii_escapes, say
from cdcd.cli.published_topics import command_settings
from cdcd.cli.verify_mirror import require_mirror, verify_mirror, why_behind
from cdcd.cli.verify_output import Progress, Shown
from cdcd.cli.verify_state import StoredOutcomes, has_entries, only_run, remove_entries, replace_file
from cdcd.config import Config
from cdcd.errors import CdcdError, ConfigError
from cdcd.lsn import INVALID_LSN, Lsn, parse_lsn
from cdcd.redaction import clean
from cdcd.sink.names import topic_name
from cdcd.source.connection import connect_sql
from cdcd.source.identity import identify
from cdcd.source.publication_catalog import PublishedTable
from cdcd.verify.outcome import (
    EQUAL,
    EXIT_OF,
    UNKNOWN,
    CannotTell,
    TableOutcome,
    as_document,
    as_metrics,
    status_of,
)
from cdcd.verify.records import share_of, windows_of
from cdcd.verify.schemas import RegistryIds, TopicIds
from cdcd.verify.source import Source
from cdcd.verify.verification import Options, Verification
from cdcd.version import __version__

__all__ = ["Request", "verify"]

_KAFKA_TIMEOUT_S = 30.0
_COLLECTED_EVERY = 100_000
"""Objects: the garbage collector would look at each record several times, and find none that it can free."""


@dataclass(frozen=True, slots=True)
class Request:
    """The options of the command."""

    tables: tuple[str, ...] = ()
    percent: float = 100.0
    window: int | None = None
    rate: float | None = None
    timeout_s: float = 300.0
    most_rows: int = 100
    shows_keys: bool = False
    is_json: bool = False
    state: Path | None = None
    metrics: Path | None = None
    mirror: str | None = None
    mirror_limit_s: float | None = None
    target_options: Mapping[str, str] = field(default_factory=dict, repr=False)


def verify(config: Config, config_path: Path, request: Request) -> int:
    """Compare the tables, print the result, and return the exit status. Raises ConfigError."""
    if request.mirror is not None:
        require_mirror(request.mirror, request.target_options)  # before the hours of the topics
    gc.set_threshold(_COLLECTED_EVERY)
    outcomes, mirrored = Shown(is_shown=not request.is_json), Shown("topic", "mirror", not request.is_json)
    failures = [_compare(config, config_path, request, outcomes)]
    failures.append(_write_metrics(request, outcomes, is_complete=not failures[0]))
    if outcomes or not failures[0]:
        failures.append(_shown(outcomes.end))
    if request.mirror is not None:
        compared = [parse_lsn(one.lsn) for one in outcomes if one.lsn]
        compared_lsn = max(compared, default=INVALID_LSN)
        add = partial(_add_mirrored, config, config_path, request, compared_lsn, mirrored)
        failures.append(_shown(add))
    failed = [one for one in failures if one]
    status = status_of([*outcomes, *mirrored])
    if failed and status == EXIT_OF[EQUAL]:
        status = EXIT_OF[UNKNOWN]
    if request.is_json:
        page: dict[str, object] = {"status": status, "tables": as_document(outcomes)}
        page |= {} if request.mirror is None else {"mirror": as_document(mirrored)}
        page |= {"errors": failed} if failed else {}
        text = ascii_escapes(json.dumps(page, indent=2))
        if reason := _shown(lambda: print(text, flush=True)):
            failed.append(reason)
            status = status or EXIT_OF[UNKNOWN]
    say([f"cdcd: {one}" for one in failed], sys.stderr)
    return status


def _shown(show: Callable[[], None]) -> str:
    """Print by a function; return why that failed, "" if it did not. Raises BrokenPipeError."""
    try:
        show()
    except BrokenPipeError:
        raise
    except OSError as error:
        return f"standard output: {_reason(error)}"
    return ""


def _compare(config: Config, config_path: Path, request: Request, outcomes: Shown) -> str:
    """Add the outcomes of the tables; return why the run ended before the last one, "" if it did not."""
    progress = Progress(is_drawn=sys.stderr.isatty())
    try:
        with _folder(request) as folder:
            _add_outcomes(config, request, folder, progress, outcomes)
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001 - Python's status of an uncaught one is that of tables that differ
        return _reason(error)
    finally:
        progress.end()
    return ""


def _reason(error: Exception) -> str:
    """Return an error without values: the text of a library's error may have the value that it was about."""
    if isinstance(error, CdcdError | CannotTell):
        return str(error)
    if isinstance(error, OSError):
        return clean(f"{type(error).__name__}: {error}")
    at = traceback.extract_tb(error.__traceback__)[-1]
    return clean(f"an internal error: {type(error).__name__} in {Path(at.filename).name}, line {at.lineno}")


def _write_metrics(request: Request, outcomes: Sequence[TableOutcome], *, is_complete: bool) -> str:
    """Write the metrics; return why that failed, "" if it did not."""
    if request.metrics is None:
        return ""
    try:
        replace_file(request.metrics, as_metrics(outcomes, time.time(), is_complete=is_complete), 0o644)
    except OSError as error:
        return f"--metrics-file was not written: {_reason(error)}"
    return ""


def _add_mirrored(
    config: Config, config_path: Path, request: Request, compared_lsn: Lsn, outcomes: Shown
) -> None:
    """Compare the mirror when it has the commits with which the source was compared, or at the end of the time."""
    assert request.mirror is not None
    outcomes.say(["", "the mirror:"])
    began_s = time.monotonic()
    limit_s = request.mirror_limit_s
    wait_s = min(request.timeout_s, math.inf if limit_s is None else limit_s)
    try:
        if compared_lsn != INVALID_LSN:
            slot, options = config.source.slot.name, request.target_options
            reason = why_behind(request.mirror, options, compared_lsn, wait_s, slot=slot)
            if reason:
                outcomes.append(TableOutcome("the mirror", UNKNOWN, reason=reason))
        verify_mirror(
            config_path,
            request.mirror,
            request.target_options,
            request.tables,
            shows_keys=request.shows_keys,
            most_rows=request.most_rows,
            limit_s=None if limit_s is None else max(0.0, limit_s - (time.monotonic() - began_s)),
            outcomes=outcomes,
        )
    except Exception as error:  # noqa: BLE001 - what was found before is to be printed
        outcomes.append(TableOutcome("the mirror", UNKNOWN, reason=_reason(error)))
    outcomes.end()


def _add_outcomes(
    config: Config, request: Request, folder: Path, progress: Progress, outcomes: Shown
) -> None:
    settings = command_settings(config, timeout_s=_KAFKA_TIMEOUT_S)
    topic = config.schema_topic
    schemas = RegistryIds(config.registry_settings()) if topic is None else TopicIds(settings, topic)
    stored = None if request.state is None else _stored(config, request, folder)
    share = share_of(request.percent)
    window = _window(request, share, None if stored is None else stored.window)
    if stored is not None:
        if stored.window is None:
            remove_entries(folder)  # of another server, configuration, sample or version
        stored.begin(window)
    options = Options(
        folder,
        share,
        request.timeout_s,
        request.rate,
        request.most_rows,
        shows_keys=request.shows_keys,
        is_copied=config.snapshot.copies_tables and config.snapshot.new_tables_policy == "snapshot",
    )
    opened = Source(config.source_settings(), config.format.policies(), window * share)
    with contextlib.closing(schemas), contextlib.closing(opened) as source:
        verification = Verification(source, settings, schemas.schema, options, progress.show)
        published = source.tables()
        namesakes = Counter(map(_title, published))
        chosen = {_title(table): table for table in _chosen(published, request.tables)}
        if stored is not None:
            for one in stored.outcomes():
                if one.table in chosen:
                    outcomes.append(one)
        finished = {one.table for one in outcomes}
        for title, table in chosen.items():
            if title not in finished:
                outcome = _outcome_of(config, verification, table, namesakes[title])
                progress.end()
                outcomes.append(outcome)
                if stored is not None:
                    stored.add(outcome)
    if stored is not None:
        unknown = {one.table for one in outcomes if one.state == UNKNOWN}
        stored.end(is_known=not any(has_entries(folder / str(chosen[one].relid)) for one in unknown))


def _window(request: Request, share: int, stored: int | None) -> int:
    """Return which of the samples to compare, from 0: another one in each run. Raises ConfigError."""
    count = windows_of(share)
    if request.window is not None and request.window > count:
        raise ConfigError(f"--sample-window: with --sample {request.percent:g} it has to be 1 to {count}")
    if request.window is not None:
        stored = request.window - 1
    window = random.randrange(count) if stored is None else stored  # noqa: S311 - no secret
    if count > 1:
        say([f"cdcd: sample window {window + 1} of {count}"], sys.stderr)
    return window


def _title(table: PublishedTable) -> str:
    return f"{table.schema}.{table.name}"


def _outcome_of(
    config: Config, verification: Verification, table: PublishedTable, namesakes: int
) -> TableOutcome:
    """Return the outcome of a table. `namesakes`: the published tables of its title, itself among them."""
    title = _title(table)
    if namesakes > 1:
        return TableOutcome(
            title, UNKNOWN, f"{namesakes} published tables have this name: schema, dot, table"
        )
    if reason := _partly_copied(config, title):
        return TableOutcome(title, UNKNOWN, reason)
    name = topic_name(config.sink.topics.template, name=config.name, schema=table.schema, table=table.name)
    try:
        return verification.compare(table, name)
    except Exception as error:  # noqa: BLE001 - such as a full disk; another table may need less
        return TableOutcome(title, UNKNOWN, _reason(error))


def _stored(config: Config, request: Request, folder: Path) -> StoredOutcomes:
    with contextlib.closing(connect_sql(config.source_settings())) as connection:
        server = identify(connection)
    identity = {
        "version": __version__,
        "system_identifier": server.system_identifier,
        "database": server.database,
        "configuration": config.model_dump_json(),
        "options": [request.percent, request.window, request.most_rows, request.shows_keys],
    }
    return StoredOutcomes(folder, identity, has_keys=request.shows_keys)


def _partly_copied(config: Config, title: str) -> str:
    """Return why the topic does not have all rows, "" if it has them."""
    choice = config.snapshot.selection().choice(title)
    if not choice.is_included or choice.where is not None:
        return "the configuration copies only a part of its rows (snapshot.overrides)"
    return ""


def _chosen(tables: Sequence[PublishedTable], names: Sequence[str]) -> list[PublishedTable]:
    titles = {_title(table): table for table in tables}
    if unknown := [name for name in names if name not in titles]:
        raise ConfigError(f"--table: not published: {', '.join(unknown)}")
    return [titles[name] for name in names] if names else list(tables)


@contextlib.contextmanager
def _folder(request: Request) -> Iterator[Path]:
    if request.state is not None:
        request.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        with only_run(request.state):
            yield request.state
        return
    folder = Path(tempfile.mkdtemp(prefix="cdcd-verify-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
