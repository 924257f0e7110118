"""`cdcd verify`: compare the topics with the source while both change.

In: a configuration, options.  Out: lines or JSON on standard output, progress on standard error, an exit status.
Invariant: status 0 only if every chosen table is equal; 1 if one differs; 2 if one could not be compared, and none
differs. With a folder for the state an interrupted run continues: finished tables are not compared again.
Must not: print a row's value; print a key unless it is asked for.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cdcd.cli.output import ascii_escapes, say
from cdcd.cli.published_topics import command_settings
from cdcd.config import Config
from cdcd.errors import CdcdError, ConfigError
from cdcd.redaction import clean
from cdcd.sink.names import topic_name
from cdcd.source.publication_catalog import PublishedTable
from cdcd.verify.outcome import (
    EXIT_OF,
    UNKNOWN,
    CannotTell,
    DifferentRow,
    TableOutcome,
    as_document,
    as_lines,
    as_metrics,
    status_of,
)
from cdcd.verify.records import share_of
from cdcd.verify.schemas import RegistryIds, TopicIds
from cdcd.verify.source import Source
from cdcd.verify.verification import Options, Verification

__all__ = ["Request", "verify"]

_OUTCOMES = "outcomes.json"
_DRAWN_EVERY_S = 0.5
_BAR_CHARACTERS = 20
_KAFKA_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Request:
    """The options of the command."""

    tables: tuple[str, ...] = ()
    percent: float = 100.0
    rate: float | None = None
    timeout_s: float = 300.0
    most_rows: int = 100
    shows_keys: bool = False
    is_json: bool = False
    state: Path | None = None
    metrics: Path | None = None
    mirror: str | None = None
    target_options: Mapping[str, str] = field(default_factory=dict, repr=False)


def verify(config: Config, config_path: Path, request: Request) -> int:
    """Compare the tables, print the result, and return the exit status. Raises ConfigError."""
    with _folder(request) as folder:
        progress = _Progress(is_drawn=sys.stderr.isatty())
        try:
            outcomes = _compared(config, request, folder, progress)
            mirrored = _mirrored(config_path, request)
        except ConfigError:
            raise
        except CdcdError as error:  # its own status is that of tables that differ
            say([f"cdcd: {error}"], sys.stderr)
            return EXIT_OF[UNKNOWN]
        finally:
            progress.end()
        (folder / _OUTCOMES).unlink(missing_ok=True)
    if request.metrics is not None:
        written = request.metrics.with_suffix(".new")
        written.write_text(as_metrics(outcomes, time.time()))
        written.replace(request.metrics)
    status = status_of([*outcomes, *mirrored])
    if request.is_json:
        page = {"status": status, "tables": as_document(outcomes)}
        page |= {} if request.mirror is None else {"mirror": as_document(mirrored)}
        print(ascii_escapes(json.dumps(page, indent=2)))
    else:
        say(as_lines(outcomes))
        say([] if request.mirror is None else ["", "the mirror:", *as_lines(mirrored, "topic", "mirror")])
    return status


def _mirrored(config_path: Path, request: Request) -> list[TableOutcome]:
    if request.mirror is None:
        return []
    from cdcd.cli.verify_mirror import verify_mirror

    return verify_mirror(
        config_path,
        request.mirror,
        request.target_options,
        request.tables,
        shows_keys=request.shows_keys,
    )


def _compared(config: Config, request: Request, folder: Path, progress: _Progress) -> list[TableOutcome]:
    settings = command_settings(config, timeout_s=_KAFKA_TIMEOUT_S)
    topic = config.schema_topic
    schemas = RegistryIds(config.registry_settings()) if topic is None else TopicIds(settings, topic)
    outcomes = _stored(folder)
    options = Options(
        folder,
        share_of(request.percent),
        request.timeout_s,
        request.rate,
        request.most_rows,
        shows_keys=request.shows_keys,
        is_copied=config.snapshot.copies_tables and config.snapshot.new_tables_policy == "snapshot",
    )
    with contextlib.closing(schemas), _source(config) as source:
        verification = Verification(source, settings, schemas.schema, options, progress.show)
        for table in _chosen(source.tables(), request.tables):
            title = f"{table.schema}.{table.name}"
            if any(one.table == title for one in outcomes):
                continue
            if reason := _partly_copied(config, title):
                outcomes.append(TableOutcome(title, UNKNOWN, reason))
                continue
            name = topic_name(
                config.sink.topics.template, name=config.name, schema=table.schema, table=table.name
            )
            outcomes.append(verification.compare(table, name))
            if request.state is not None:
                (folder / _OUTCOMES).write_text(json.dumps(as_document(outcomes)))
    return outcomes


@contextlib.contextmanager
def _source(config: Config) -> Iterator[Source]:
    try:
        opened = Source(config.source_settings(), config.format.policies())
    except CannotTell as why:
        raise ConfigError(f"verify: {why}") from None
    try:
        yield opened
    finally:
        opened.close()


def _partly_copied(config: Config, title: str) -> str:
    """Return why the topic does not have all rows, "" if it has them."""
    choice = config.snapshot.selection().choice(title)
    if not choice.is_included or choice.where is not None:
        return "the configuration copies only a part of its rows (snapshot.tables)"
    return ""


def _chosen(tables: Sequence[PublishedTable], names: Sequence[str]) -> list[PublishedTable]:
    titles = {f"{table.schema}.{table.name}": table for table in tables}
    if unknown := [name for name in names if name not in titles]:
        raise ConfigError(f"--table: not published: {', '.join(unknown)}")
    return [titles[name] for name in names] if names else list(tables)


@contextlib.contextmanager
def _folder(request: Request) -> Iterator[Path]:
    if request.state is not None:
        request.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        yield request.state
        return
    folder = Path(tempfile.mkdtemp(prefix="cdcd-verify-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _stored(folder: Path) -> list[TableOutcome]:
    try:
        documents: list[dict[str, Any]] = json.loads((folder / _OUTCOMES).read_text())
    except (OSError, ValueError):
        return []
    return [
        TableOutcome(**{**one, "rows": [DifferentRow(**row) for row in one["rows"]]}) for one in documents
    ]


class _Progress:
    """One line on standard error, drawn again in its place; nothing if that is no terminal."""

    def __init__(self, *, is_drawn: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._is_drawn, self._clock = is_drawn, clock
        self._drawn_s = 0.0
        self._width = 0

    def show(self, table: str, stage: str, done: int, total: int | None) -> None:
        """Draw the line, at most every half second."""
        if not self._is_drawn or self._clock() - self._drawn_s < _DRAWN_EVERY_S:
            return
        self._drawn_s = self._clock()
        unit = "records" if stage == "topics" else "rows"
        line = f"{clean(table, 60)}  {stage}: {done:,} {unit}{_bar(done, total)}"
        sys.stderr.write("\r" + line.ljust(self._width))
        sys.stderr.flush()
        self._width = len(line)

    def end(self) -> None:
        """Remove the line."""
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")


def _bar(done: int, total: int | None) -> str:
    if not total:
        return ""
    percent = min(100 * done // total, 99)
    marks = percent * _BAR_CHARACTERS // 100
    return f"  [{'#' * marks}{'.' * (_BAR_CHARACTERS - marks)}] {percent:2} %"
