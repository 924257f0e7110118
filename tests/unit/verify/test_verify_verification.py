"""What keeps a comparison from an answer, without servers."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cdcd.errors import SinkUnavailable, SourceUnavailable
from cdcd.schema.policy import Policies
from cdcd.snapshot.units import UNIT_PAGES
from cdcd.source import connection
from cdcd.source.settings import SourceSettings
from cdcd.verify import findings, source, verification
from cdcd.verify.fold import Barriers, Difference
from cdcd.verify.narrowing import in_file
from cdcd.verify.outcome import (
    DIFFERS,
    EQUAL,
    CannotTell,
    DifferentRow,
    GaveWay,
    TableOutcome,
    lines_of,
)
from cdcd.verify.records import POSITION, Found, Place, share_of
from cdcd.verify.source_sql import Part
from cdcd.verify.spill import SpillFolder
from cdcd.verify.verification import Options, Verification

NO_BARRIERS = Barriers(b"", b"", frozenset())
POSITION_10 = POSITION.pack(1, 10, 1, 1)


def question(outcome: TableOutcome, found: Found, incomplete: int = 0) -> str:
    return findings.open_question(outcome, found, NO_BARRIERS, incomplete)


def test_an_equal_table_is_unknown_where_the_topic_does_not_say_so() -> None:
    equal = TableOutcome("public.t", EQUAL)
    assert question(equal, Found()) == ""
    assert "2 rows have an update" in question(equal, Found(), incomplete=2)
    assert "--recopy" in question(equal, Found(former=POSITION_10))
    assert "twice" in question(equal, Found(disordered=POSITION_10))
    assert question(equal, Found(unnumbered=POSITION_10)) == ""


def test_other_values_in_columns_without_numbers_are_no_difference() -> None:
    found = Found(unnumbered=POSITION_10)
    assert "no numbers" in question(TableOutcome("public.t", DIFFERS, different=1), found)
    assert question(TableOutcome("public.t", DIFFERS, different=1, missing=1), found) == ""
    assert question(TableOutcome("public.t", DIFFERS, different=1), Found()) == ""


def test_what_the_publication_does_not_publish_is_named() -> None:
    assert source._unpublished((True, True, True, True)) == []
    assert source._unpublished((True, False, True, None)) == ["update", "truncate"]


PUBLISHED: Any = SimpleNamespace(schema="public", name="t", relid=7)


def source_answering(monkeypatch: pytest.MonkeyPatch, *answers: list[tuple[Any, ...]]) -> Any:
    """Return a source whose server gives these answers."""
    rows = iter(answers)
    monkeypatch.setattr(source, "fetch", lambda *_: next(rows))
    one: Any = source.Source.__new__(source.Source)
    one._connection = one._other = SimpleNamespace(server_version=180_000)
    one._settings = SimpleNamespace(publications=("p",))
    return one


def test_a_standby_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    one = source_answering(monkeypatch, [("10:10:",)], [(None,)])
    with pytest.raises(CannotTell, match="standby"):
        one._open(PUBLISHED, 1, 1)


@pytest.mark.parametrize("now", [("public", "t_old"), ("archive", "t")])
def test_a_table_that_another_one_replaces_during_the_run_is_not_compared(
    monkeypatch: pytest.MonkeyPatch, now: tuple[str, str]
) -> None:
    """As t -> t_old, t_new -> t: the topic and the lock are those of the name, the rows those of the table."""
    one = source_answering(monkeypatch, [("10:10:",)], [("0/9000",)])
    renamed = SimpleNamespace(schema=now[0], name=now[1], relid=7)
    monkeypatch.setattr(source, "published_tables", lambda *_, only: [renamed])
    with pytest.raises(CannotTell, match="renamed"):
        one._open(PUBLISHED, 1, 1)


def test_all_connections_are_of_one_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A DSN may name several servers: the snapshot of one says nothing about the message of another."""
    servers = itertools.cycle([SimpleNamespace(started=n, close=lambda: None) for n in (1, 2)])
    monkeypatch.setattr(connection, "_connect", lambda *_: next(servers))
    monkeypatch.setattr(connection, "_set_up", lambda _: None)
    for module in (connection, source):
        monkeypatch.setattr(module, "fetch", lambda of, _: [(of.started,)])
    monkeypatch.setattr(source.Source, "_set_up", lambda _: None)
    one: Any = source.Source(SourceSettings("host=a,b", lambda: None, "slot", ("p",), "cdcd"), Policies())
    assert one._connection.started == one._other.started == one._catalog._settings.instance == 1


PARTS = (Part("a", None), Part("b", None))


class Server:
    """A source of two parts: what it reads, and how far the clock has gone when it is asked for the next one."""

    def __init__(self) -> None:
        self.now_s, self.asked_s = 0.0, list[float]()

    def sums(self, opened: Any, part: Part) -> list[tuple[int, int, list[int]]]:
        self.asked_s.append(self.now_s)
        return [(7, 100, [1])]

    def rows(self, opened: Any, part: Part, buckets: Any, *, with_key: bool) -> list[list[tuple[Any, ...]]]:
        self.asked_s.append(self.now_s)
        return []

    def give_way(self, opened: Any) -> None:
        pass

    def watched(self, opened: Any) -> Any:
        return contextlib.nullcontext()

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def opened_table(pages: int = 0, estimate: int | None = None) -> Any:
    compared = SimpleNamespace(columns=("c",), title="public.t")
    return SimpleNamespace(compared=compared, parts=PARTS, read={}, pages=pages, estimate=estimate)


def limited(server: Server, percent: float, rate: float) -> Verification:
    options = Options(Path(), share_of(percent), rows_per_second=rate)
    return Verification(server, None, None, options, lambda *_: None)  # type: ignore[arg-type]


def test_the_limit_counts_the_rows_that_are_read_and_holds_for_each_reading(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server, opened = Server(), opened_table()
    monkeypatch.setattr(
        verification, "time", SimpleNamespace(monotonic=lambda: server.now_s, sleep=server.sleep)
    )
    compares = limited(server, 50, 100.0)
    compares._sums(opened)  # a part has 100 rows of the sample, so about 200
    compares._spill_rows(opened, [7], SpillFolder(tmp_path, "source", 24, 0))
    compares._add_keys_of_source(opened, set(), {})
    assert [round(one) for one in server.asked_s] == [0, 2, 4, 6, 8, 10]


@pytest.mark.parametrize(
    ("pages", "estimate", "rate", "expected"),
    [
        (1000, 50_000, 5_000.0, 100),
        (1000, None, 29_100.0, 100),
        (1000, None, 1.0, 16),
        (9, None, 1e9, UNIT_PAGES),
    ],
)
def test_without_statistics_a_part_is_as_small_as_full_pages_demand(
    pages: int, estimate: int | None, rate: float, expected: int
) -> None:
    assert limited(Server(), 100, rate)._unit_pages(opened_table(pages, estimate)) == expected


def test_the_source_may_have_more_files_than_the_topics(tmp_path: Path) -> None:
    topics, more = SpillFolder(tmp_path, "topics", 16, 1), SpillFolder(tmp_path, "source", 16, 3)
    entries = [bytes([first]) + bytes(15) for first in range(256)]
    for entry in entries:
        topics.append(entry)
    topics.flush()
    buckets = {first << 4 for first in range(0, 256, 2)}
    found = [list(in_file(topics, more, number, buckets)) for number in more.files]
    assert [len(one) for one in found] == [16] * 8
    assert sorted(entry for one in found for entry in one) == entries[::2]


def test_all_files_are_removed_whatever_their_number_was(tmp_path: Path) -> None:
    one = SpillFolder(tmp_path, "source", 16, 3)
    one.append(b"\xff" * 16)
    one.flush()
    SpillFolder(tmp_path, "source", 16, 0).remove()
    assert list(one.read(7)) == []


@contextlib.contextmanager
def watched(steps: list[str]) -> Iterator[None]:
    steps.append("watched")
    yield
    steps.append("not watched")


def test_a_copy_that_begins_or_ends_while_the_last_records_are_read_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    steps: list[str] = []
    opened = opened_table()
    server: Any = SimpleNamespace(
        opened=lambda *_: contextlib.nullcontext(opened),
        await_confirmed=lambda *_: steps.append("confirmed"),
        watched=lambda _: watched(steps),
    )
    log = SimpleNamespace(store=lambda: None)
    monkeypatch.setattr(verification, "Admin", lambda _: None)
    monkeypatch.setattr(verification, "topics_with_records", lambda *_: steps.append("topics?") or ["t"])
    monkeypatch.setattr(verification, "TopicLog", lambda *_: log)
    monkeypatch.setattr(verification, "fingerprint", lambda _: "")
    compares = Verification(server, None, None, Options(tmp_path, 1), lambda *_: None)  # type: ignore[arg-type]
    for name, step in {
        "_read_on": "read",
        "_refuse_copy": "copy?",
        "_sums": "sums",
        "_judged": "judged",
    }.items():
        monkeypatch.setattr(compares, name, lambda *_, step=step: steps.append(step))
    opened.compared = SimpleNamespace(title="public.t")
    compares._once(None, "t", tmp_path)  # type: ignore[arg-type]
    assert steps == [
        "watched", "topics?", "not watched", "read", "sums", "confirmed",
        "watched", "copy?", "read", "copy?", "not watched", "judged",
    ]  # fmt: skip


@pytest.mark.parametrize("why", [CannotTell("removed"), SinkUnavailable("away"), GaveWay()])
def test_rows_differ_also_where_their_keys_cannot_be_shown(why: Exception, tmp_path: Path) -> None:
    """The row 1 is missing from the topics, 2 has another value; the key of 2 is in a record."""

    class Gone(Server):
        def rows(
            self, opened: Any, part: Part, buckets: Any, *, with_key: bool
        ) -> list[list[tuple[Any, ...]]]:
            if isinstance(why, GaveWay):
                raise why
            return []

    def key_at(_place: Place) -> str:
        raise why

    options = Options(tmp_path, share_of(100), shows_keys=True)
    compares = Verification(Gone(), None, None, options, lambda *_: None)  # type: ignore[arg-type]
    key, found = bytes(16), dict[bytes, str]()
    different = [Difference("different", key, (0,), Place(0, 0, 7))]
    log: Any = SimpleNamespace(key_at=key_at)
    reason = compares._add_keys(opened_table(), log, different, found)
    assert reason.startswith("not all keys are shown: ")
    outcome = TableOutcome("public.t", DIFFERS, reason, rows_in_source=2, rows_in_topics=2, different=1)
    outcome.rows = [DifferentRow("different", "00")]
    assert lines_of(outcome)[0].endswith(f"1 different; {reason} (0.0 s)")


def test_a_lost_connection_is_renewed_once_for_each_table(tmp_path: Path) -> None:
    steps: list[str] = []
    server: Any = SimpleNamespace(renew=lambda: steps.append("renewed"))
    compares = Verification(server, None, None, Options(tmp_path, 1), lambda *_: None)  # type: ignore[arg-type]
    answers = [SourceUnavailable("lost"), SourceUnavailable("lost"), SourceUnavailable("lost"), "equal"]

    def once(*_: Any) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    compares._once = once  # type: ignore[method-assign]
    table: Any = None
    with pytest.raises(SourceUnavailable):
        compares._tried(table, "t", tmp_path)
    assert compares._tried(table, "t", tmp_path) == "equal"
    assert steps == ["renewed", "renewed"]


def test_a_slot_that_nobody_reads_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    one: Any = source.Source.__new__(source.Source)
    one._silent, one._other, one._settings = None, None, SimpleNamespace(slot="s")
    opened: Any = SimpleNamespace(view=SimpleNamespace(marker_lsn=0x100))
    slot, now_s = ["0/50", False], [0.0]
    monkeypatch.setattr(source, "fetch", lambda *_: [tuple(slot)])
    monkeypatch.setattr(one, "release_if_waited_for", lambda _: None, raising=False)
    clock = SimpleNamespace(monotonic=lambda: now_s[0], sleep=lambda _: now_s.__setitem__(0, now_s[0] + 1))
    monkeypatch.setattr(source, "time", clock)

    def waited() -> float:
        began_s = now_s[0]
        with pytest.raises(CannotTell, match="within 30 s"):
            one.await_confirmed(opened, 30.0)
        return now_s[0] - began_s

    assert [waited(), waited(), waited()] == [31, 0, 0]
    slot[:] = ["0/60", False]  # somebody has read it
    assert [waited(), waited()] == [31, 0]
    slot[:] = ["0/60", True]
    assert [waited(), waited()] == [31, 31]
    slot[:] = ["0/100", False]
    one.await_confirmed(opened, 30.0)
