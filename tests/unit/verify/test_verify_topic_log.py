"""The files of a table's records over several runs, against topics in memory."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cdcd.model import PgType
from cdcd.sink.topic_records import Bounds, RecordsRemoved, TopicRecord
from cdcd.verify import topic_log
from cdcd.verify.columns import compared_column
from cdcd.verify.outcome import CannotTell
from cdcd.verify.records import ComparedTable, Found, Place
from cdcd.verify.topic_log import TopicLog

TYPES = {23: PgType(23, "pg_catalog", "int4", "b")}
NAME = "shop.public.t"


def table(columns: int = 1, **over: Any) -> ComparedTable:
    described = tuple(
        compared_column(f"c{number}", number, 23, -1, TYPES) for number in range(1, columns + 1)
    )
    return ComparedTable(500, "public", "t", described, (0,), TYPES, **over)


@dataclass
class Topics:
    """Topics with one partition each: their ids and the keys of their records."""

    ids: dict[str, str] = field(default_factory=lambda: {NAME: "a/1"})
    records: dict[str, list[bytes]] = field(default_factory=lambda: {NAME: [b"1", b"2"]})

    def names(self, _settings: Any, _topic: str) -> list[str]:
        return sorted(self.ids)

    def ids_of(self, _settings: Any, names: list[str]) -> dict[str, str]:
        return {name: self.ids[name] for name in names}

    def bounds(self, _settings: Any, names: list[str]) -> dict[tuple[str, int], Bounds]:
        return {(name, 0): Bounds(0, len(self.records[name])) for name in names}

    def read(
        self, _settings: Any, bounds: Mapping[tuple[str, int], Bounds], _silence_s: float
    ) -> Iterator[list[TopicRecord]]:
        for (name, number), one in bounds.items():
            yield [
                TopicRecord(name, number, offset, self.records[name][offset], b"")
                for offset in range(one.start, one.end)
            ]


class Keys:
    """Records whose entries have only the key and the number of the topic."""

    def __init__(self, compared: ComparedTable, _schema_of: Any) -> None:
        self.found = Found()
        self._size = compared.entry_bytes

    def read(self, _batch: Any, at: int, _numbers: Any) -> tuple[int, bytes]:
        return at, b""

    def entry(self, place: Place, key: bytes, _value: bytes) -> bytes:
        return (bytes(16) + key + bytes([place.topic])).ljust(self._size, b"\0")


@pytest.fixture
def topics(monkeypatch: pytest.MonkeyPatch) -> Topics:
    known = Topics()
    for name, stub in (
        ("topics_with_records", known.names),
        ("topic_ids", known.ids_of),
        ("bounds_of", known.bounds),
        ("read_records", known.read),
        ("Records", Keys),
    ):
        monkeypatch.setattr(topic_log, name, stub)
    return known


def opened(folder: Path, compared: ComparedTable | None = None) -> TopicLog:
    return TopicLog(None, None, compared or table(), NAME, folder, {}.__getitem__)  # type: ignore[arg-type]


def read(log: TopicLog) -> list[tuple[bytes, int]]:
    """Read on, and return the key and the topic of each entry."""
    for _ in log.read_on(1.0, lambda _done, _total: None):
        pass
    return [(one[16:17], one[17]) for number in log.files.files for one in log.files.read(number)]


def test_an_interrupted_run_reads_no_record_again(topics: Topics, tmp_path: Path) -> None:
    log = opened(tmp_path)
    assert read(log) == [(b"1", 0), (b"2", 0)]
    log.found.is_flat = True
    log.store()
    topics.records[NAME][:2] = [b"x", b"x"]
    topics.records[NAME].append(b"3")
    continued = opened(tmp_path)
    assert read(continued) == [(b"1", 0), (b"2", 0), (b"3", 0)]
    assert continued.found.is_flat


@pytest.mark.parametrize("is_stored", [True, False])
@pytest.mark.parametrize("other", [table(2), table(share=99)])
def test_the_entries_of_another_table_or_sample_are_removed(
    topics: Topics, tmp_path: Path, other: ComparedTable, is_stored: bool
) -> None:
    log = opened(tmp_path)
    read(log)
    if is_stored:
        log.store()
    (tmp_path / "topics-0007").write_bytes(bytes(100))  # of a run with more files
    assert read(opened(tmp_path, other)) == [(b"1", 0), (b"2", 0)]
    assert [path.name for path in tmp_path.glob("topics-*")] == ["topics-0000"]


def test_the_entries_of_another_version_of_cdcd_are_removed(
    topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version may compute other hashes."""
    log = opened(tmp_path)
    read(log)
    log.store()
    topics.records[NAME] = [b"8", b"9"]
    monkeypatch.setattr(topic_log, "__version__", "0.0.0")
    assert read(opened(tmp_path)) == [(b"8", 0), (b"9", 0)]


def test_a_topic_that_was_recreated_between_two_runs_is_read_from_its_start(
    topics: Topics, tmp_path: Path
) -> None:
    log = opened(tmp_path)
    read(log)
    log.store()
    topics.ids[NAME], topics.records[NAME] = "a/2", [b"2", b"3", b"4"]
    assert read(opened(tmp_path)) == [(b"2", 0), (b"3", 0), (b"4", 0)]


def test_a_topic_that_is_recreated_within_a_run_cannot_be_compared(topics: Topics, tmp_path: Path) -> None:
    log = opened(tmp_path)
    read(log)
    topics.ids[NAME], topics.records[NAME] = "a/2", [b"7", b"8", b"9"]
    with pytest.raises(CannotTell, match="recreated"):
        read(log)


def test_a_topic_that_is_recreated_while_it_is_read_cannot_be_compared(
    topics: Topics, tmp_path: Path
) -> None:
    log = opened(tmp_path)
    batches = log.read_on(1.0, lambda _done, _total: None)
    next(batches)
    topics.ids[NAME] = "a/2"
    with pytest.raises(CannotTell, match="recreated"):
        next(batches)


def test_records_that_are_removed_while_they_are_read_leave_the_table_unknown(
    topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = opened(tmp_path)

    def removed(*_: Any) -> Iterator[list[TopicRecord]]:
        yield []
        raise RecordsRemoved

    monkeypatch.setattr(topic_log, "read_records", removed)
    with pytest.raises(CannotTell, match="retention"):
        read(log)


def test_a_topic_that_arises_meanwhile_is_read_and_the_others_retain_their_numbers(
    topics: Topics, tmp_path: Path
) -> None:
    log = opened(tmp_path)
    read(log)
    topics.ids[f"{NAME}.v2"], topics.records[f"{NAME}.v2"] = "a/9", [b"5"]
    assert read(log) == [(b"1", 0), (b"2", 0), (b"5", 1)]
    log.store()
    topics.ids[f"{NAME}.v10"], topics.records[f"{NAME}.v10"] = "a/7", [b"6"]
    continued = opened(tmp_path)
    assert read(continued) == [(b"1", 0), (b"2", 0), (b"5", 1), (b"6", 2)]
    assert continued.topics == [NAME, f"{NAME}.v2", f"{NAME}.v10"]


def test_a_topic_that_arose_after_the_reading_is_unread(topics: Topics, tmp_path: Path) -> None:
    log = opened(tmp_path)
    read(log)
    assert log.unread() == []
    topics.ids[f"{NAME}.v2"], topics.records[f"{NAME}.v2"] = "a/9", [b"5"]
    assert log.unread() == [f"{NAME}.v2"]
    read(log)
    assert log.unread() == []


@pytest.mark.parametrize("lost", [lambda path: os.truncate(path, 0), Path.unlink])
def test_entries_that_a_power_loss_has_removed_are_read_again(
    topics: Topics, tmp_path: Path, lost: Callable[[Path], None]
) -> None:
    log = opened(tmp_path)
    read(log)
    log.store()
    lost(tmp_path / "topics-0000")
    assert read(opened(tmp_path)) == [(b"1", 0), (b"2", 0)]


@pytest.mark.parametrize("text", ["{}", "[]", "null", "7", '{"format": 3}', "{"])
def test_a_state_of_another_form_is_not_continued(topics: Topics, tmp_path: Path, text: str) -> None:
    (tmp_path / "topics.json").write_text(text)
    (tmp_path / "topics-0000").write_bytes(bytes(500))
    assert read(opened(tmp_path)) == [(b"1", 0), (b"2", 0)]


def test_a_state_without_one_of_its_fields_is_not_continued(topics: Topics, tmp_path: Path) -> None:
    log = opened(tmp_path)
    read(log)
    log.store()
    whole = json.loads((tmp_path / "topics.json").read_text())
    for name in whole:
        (tmp_path / "topics.json").write_text(json.dumps({**whole, name: None}))
        assert read(opened(tmp_path)) == [(b"1", 0), (b"2", 0)]
