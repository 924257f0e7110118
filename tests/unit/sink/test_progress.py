"""The progress record: other versions and readers rely on its format."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from cdcd.errors import ProgressUnreadable
from cdcd.model import (
    BlockingCopyState,
    CopyState,
    Gap,
    PartPosition,
    PreparedBefore,
    Progress,
    SourceIdentity,
    TableCopyState,
)
from cdcd.sink.progress import FIRST_OFFSETS, dump, first_offsets_headers, key_of, load

PROGRESS = Progress(
    identity=SourceIdentity(
        "7412345678901234567", 3, "shop", "cdcd_shop", two_phase=True, slot_lsn=0x16_00000028
    ),
    phase="snapshot",
    commit_lsn=0x16_B374D848,
    end_lsn=0x16_B374D880,
    commit_us=1_700_000_000_123_456,
    offsets={"shop.public.orders": {10: 7, 2: 5}, "a": {0: 1}},
    snapshot_tables=("shop.public.orders",),
)
DOCUMENT: dict[str, Any] = {
    "format": 2,
    "system_identifier": "7412345678901234567",
    "timeline": 3,
    "database": "shop",
    "slot": "cdcd_shop",
    "plugin": "pgoutput",
    "two_phase": True,
    "slot_lsn": "16/28",
    "phase": "snapshot",
    "commit_lsn": "16/B374D848",
    "end_lsn": "16/B374D880",
    "commit_us": 1_700_000_000_123_456,
    "offsets": {"a": {"0": 1}, "shop.public.orders": {"2": 5, "10": 7}},
    "snapshot_tables": ["shop.public.orders"],
}


WRONG_XIDS = [7, [7], ["7", "a"], [True, "a"], [-1, "a"], [1 << 32, "a"], [7, None], [7, "a", "b"]]


def test_the_record_is_this_json_under_the_slots_name() -> None:
    assert json.loads(dump(PROGRESS)) == DOCUMENT
    assert key_of("cdcd_shop") == b"cdcd_shop"


def test_a_record_is_read_back_whole() -> None:
    assert load(json.dumps(DOCUMENT).encode()) == PROGRESS


def test_transactions_prepared_before_are_reported_if_there_are_any() -> None:
    """A record of a version without this field is read as one without such transactions."""
    progress = replace(PROGRESS, prepared_before=PreparedBefore(0x500, frozenset({(8, "a 'b"), (7, "ü")})))
    before = {"until_lsn": "0/500", "undecided": [[7, "ü"], [8, "a 'b"]]}
    assert json.loads(dump(progress)) == DOCUMENT | {"prepared_before": before}
    assert load(dump(progress)) == progress


def test_a_record_of_the_first_format_is_read() -> None:
    """It lacks the slot's plugin, two_phase and the LSN at which the slot was created."""
    document = {key: DOCUMENT[key] for key in DOCUMENT.keys() - {"plugin", "two_phase", "slot_lsn"}}
    identity = SourceIdentity("7412345678901234567", 3, "shop", "cdcd_shop")
    assert load(json.dumps(document | {"format": 1}).encode()) == replace(PROGRESS, identity=identity)


@pytest.mark.parametrize(
    ("progress", "reported"),
    [
        (
            replace(PROGRESS, part=PartPosition(0x500, 70_000)),
            {"part": {"commit_lsn": "0/500", "tx_seq": 70_000}},
        ),
        (
            replace(PROGRESS, part=PartPosition(0x500, 7, "a1")),
            {"part": {"commit_lsn": "0/500", "tx_seq": 7, "numbered_by": "a1"}},
        ),
        (
            replace(PROGRESS, part=PartPosition(0x500, 7, "a1", "b2")),
            {"part": {"commit_lsn": "0/500", "tx_seq": 7, "numbered_by": "a1:b2"}},
        ),
        (
            replace(PROGRESS, gap=Gap(0x500, 0x600, "CDCD-SLOT-LOST", 5)),
            {"gap": {"from_lsn": "0/500", "to_lsn": "0/600", "reason": "CDCD-SLOT-LOST", "decided_us": 5}},
        ),
        (
            replace(PROGRESS, gap=Gap(0x500, None, "CDCD-SLOT-LOST", 5)),
            {"gap": {"from_lsn": "0/500", "to_lsn": None, "reason": "CDCD-SLOT-LOST", "decided_us": 5}},
        ),
        (replace(PROGRESS, signals_at=0), {"signals_at": 0}),
        (replace(PROGRESS, transactional_id="cdcd-shop"), {"transactional_id": "cdcd-shop"}),
        (
            replace(PROGRESS, copy=CopyState((17, 16), {18: 0x500, 9: 0x400}, 0x500)),
            {"copy": {"pending": [17, 16], "floors": {"9": "0/400", "18": "0/500"}, "point_lsn": "0/500"}},
        ),
        (
            replace(
                PROGRESS,
                copy=CopyState(
                    point_lsn=0x500,
                    blocking={
                        18: BlockingCopyState("shop.public.log", "id > 5", empties=True),
                        9: BlockingCopyState("shop.public.big", has_failed=True),
                    },
                ),
            ),
            {
                "copy": {
                    "pending": [],
                    "floors": {},
                    "point_lsn": "0/500",
                    "blocking": {
                        "18": {"topic": "shop.public.log", "empties": True, "where": "id > 5"},
                        "9": {"topic": "shop.public.big", "has_failed": True},
                    },
                }
            },
        ),
        (
            replace(
                PROGRESS,
                copy=CopyState(
                    point_lsn=0x500,
                    tx_seq=7,
                    signals_at=3,
                    partial=(17, 5),
                    excluded=(19, 18),
                    tables={
                        18: TableCopyState(
                            "shop.public.orders",
                            ("5", "b"),
                            read_again={b"\x00\xff": ("1", "ä"), b"k": ("2", "")},
                            where="id > 5",
                            is_paused=True,
                            partitions=("19:700",),
                            key=("id", "name"),
                            began_lsn=0x4FF,
                            began_as="public.orders",
                            rows=12,
                            compared_from=(0, 17),
                            rows_before=3,
                            columns=("at", "id"),
                            row_filter="0123456789abcdef",
                        ),
                        9: TableCopyState(
                            "shop.public.big", ("0/9/64/",), is_by_blocks=True, is_scanned=True
                        ),
                    },
                ),
            ),
            {
                "copy": {
                    "pending": [],
                    "floors": {},
                    "point_lsn": "0/500",
                    "tx_seq": 7,
                    "signals_at": 3,
                    "partial": [17, 5],
                    "excluded": [19, 18],
                    "tables": {
                        "18": {
                            "topic": "shop.public.orders",
                            "after": ["5", "b"],
                            "is_paused": True,
                            "read_again": [["AP8=", "1", "ä"], ["aw==", "2", ""]],
                            "where": "id > 5",
                            "partitions": ["19:700"],
                            "key": ["id", "name"],
                            "began": ["0/4FF", "public.orders"],
                            "rows": 12,
                            "compared_from": [0, 17],
                            "rows_before": 3,
                            "columns": ["at", "id"],
                            "row_filter": "0123456789abcdef",
                        },
                        "9": {
                            "topic": "shop.public.big",
                            "after": ["0/9/64/"],
                            "is_by_blocks": True,
                            "is_scanned": True,
                        },
                    },
                }
            },
        ),
        (
            replace(PROGRESS, identity=replace(PROGRESS.identity, timeline_lsn=0x400)),
            {"timeline_lsn": "0/400"},
        ),
    ],
)
def test_an_optional_field_is_written_where_it_has_a_value(
    progress: Progress, reported: dict[str, Any]
) -> None:
    assert json.loads(dump(progress)) == DOCUMENT | reported
    assert load(dump(progress)) == progress


@pytest.mark.parametrize("key", sorted(DOCUMENT))
def test_a_record_that_lacks_a_key_is_not_guessed(key: str) -> None:
    document = {name: value for name, value in DOCUMENT.items() if name != key}
    with pytest.raises(ProgressUnreadable, match=key):
        load(json.dumps(document).encode())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("format", 3),
        ("format", True),
        ("plugin", None),
        ("two_phase", 1),
        ("slot_lsn", 5),
        ("part", None),
        ("part", {"commit_lsn": "0/5"}),
        ("part", {"commit_lsn": "0/5", "tx_seq": -1}),
        ("part", {"commit_lsn": "0/5", "tx_seq": 1, "numbered_by": 5}),
        ("part", {"commit_lsn": "0/5", "tx_seq": 1, "numbered": "x"}),
        ("gap", {"from_lsn": "0/5", "to_lsn": "0/6", "reason": "X"}),
        ("gap", {"from_lsn": "0/5", "to_lsn": 6, "reason": "X", "decided_us": 1}),
        ("gap", {"from_lsn": None, "to_lsn": None, "reason": "X", "decided_us": 1}),
        ("system_identifier", 7),
        ("timeline", -1),
        ("timeline", True),
        ("database", None),
        ("phase", "paused"),
        ("commit_lsn", 5),
        ("end_lsn", "16-B374D880"),
        ("commit_us", "now"),
        ("offsets", []),
        ("offsets", {"t": {"x": 1}}),
        ("offsets", {"t": {"0": -1}}),
        ("offsets", {"t": [1]}),
        ("snapshot_tables", "t"),
        ("snapshot_tables", [1]),
        ("copy", None),
        ("copy", {"pending": [], "floors": {}}),
        ("copy", {"pending": 5, "floors": {}, "point_lsn": "0/5"}),
        ("copy", {"pending": ["5"], "floors": {}, "point_lsn": "0/5"}),
        ("copy", {"pending": [0], "floors": {}, "point_lsn": "0/5"}),
        ("copy", {"pending": [1 << 32], "floors": {}, "point_lsn": "0/5"}),
        ("copy", {"pending": [True], "floors": {}, "point_lsn": "0/5"}),
        ("copy", {"pending": [], "floors": [], "point_lsn": "0/5"}),
        ("copy", {"pending": [], "floors": {"x": "0/5"}, "point_lsn": "0/5"}),
        ("copy", {"pending": [], "floors": {"7": 5}, "point_lsn": "0/5"}),
        ("copy", {"pending": [], "floors": {}, "point_lsn": 5}),
        ("copy", {"pending": [], "floors": {}, "point_lsn": "0/5", "later": 1}),
        ("copy", {"pending": [], "floors": {}, "point_lsn": "0/5", "tx_seq": -1}),
        ("copy", {"pending": [], "floors": {}, "point_lsn": "0/5", "signals_at": True}),
        ("copy", {"pending": [], "floors": {}, "point_lsn": "0/5", "tables": []}),
        ("copy", {"pending": [], "floors": {}, "point_lsn": "0/5", "partial": 7}),
        ("copy", {"pending": [], "floors": {}, "point_lsn": "0/5", "partial": [0]}),
        ("copy", {"pending": [], "floors": {}, "point_lsn": "0/5", "excluded": ["7"]}),
        *(
            ("copy", {"pending": [], "floors": {}, "point_lsn": "0/5", "tables": {relid: table}})
            for relid, table in (
                ("x", {"topic": "t"}),
                ("0", {"topic": "t"}),
                ("7", []),
                ("7", {}),
                ("7", {"topic": 5}),
                ("7", {"topic": "t", "later": 1}),
                ("7", {"topic": "t", "after": []}),
                ("7", {"topic": "t", "after": [5]}),
                ("7", {"topic": "t", "is_scanned": 1}),
                ("7", {"topic": "t", "is_scanned": False}),
                ("7", {"topic": "t", "read_again": {}}),
                ("7", {"topic": "t", "read_again": [["AP8="]]}),
                ("7", {"topic": "t", "read_again": [["?", "1"]]}),
                ("7", {"topic": "t", "where": 5}),
                ("7", {"topic": "t", "partitions": "19"}),
                ("7", {"topic": "t", "began": ["0/5"]}),
                ("7", {"topic": "t", "began": ["x", "t"]}),
                ("7", {"topic": "t", "began": ["0/5", 5]}),
                ("7", {"topic": "t", "rows": -1}),
            )
        ),
        ("copy", {"pending": [], "floors": {}, "point_lsn": "0/5", "blocking": []}),
        *(
            ("copy", {"pending": [], "floors": {}, "point_lsn": "0/5", "blocking": {relid: table}})
            for relid, table in (
                ("x", {"topic": "t"}),
                ("7", []),
                ("7", {}),
                ("7", {"topic": 5}),
                ("7", {"topic": "t", "later": 1}),
                ("7", {"topic": "t", "where": 5}),
                ("7", {"topic": "t", "empties": False}),
            )
        ),
        ("later", 1),
        ("prepared_before", None),
        ("prepared_before", {"until_lsn": "0/5"}),
        ("prepared_before", {"until_lsn": 5, "undecided": []}),
        ("prepared_before", {"until_lsn": "0/5", "undecided": {}}),
        *(("prepared_before", {"until_lsn": "0/5", "undecided": [one]}) for one in WRONG_XIDS),
    ],
)
def test_a_record_with_a_wrong_value_is_not_guessed(key: str, value: object) -> None:
    with pytest.raises(ProgressUnreadable, match=key):
        load(json.dumps(DOCUMENT | {key: value}).encode())


NO_COPY: dict[str, object] = {"pending": [], "floors": {}, "point_lsn": "0/5"}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("later", 1),
        ("copy", NO_COPY | {"later": 1}),
        ("copy", NO_COPY | {"tables": {"7": {"topic": "t", "later": 1}}}),
        ("copy", NO_COPY | {"blocking": {"7": {"topic": "t", "later": 1}}}),
        ("part", {"commit_lsn": "0/5", "tx_seq": 1, "later": 1}),
        ("gap", {"from_lsn": "0/5", "to_lsn": "0/6", "reason": "X", "decided_us": 1, "": 1}),
        ("gap", {"from_lsn": "0/5", "to_lsn": "0/6", "reason": "X", "decided_us": 1, "later": 1}),
        ("prepared_before", {"until_lsn": "0/5", "undecided": [], "later": 1}),
    ],
)
def test_an_unknown_key_may_be_that_of_a_newer_version(key: str, value: object) -> None:
    """After a downgrade: the first advice is the version that wrote the record, not a repair of the topic."""
    with pytest.raises(ProgressUnreadable, match=f"{key}|later") as caught:
        load(json.dumps(DOCUMENT | {key: value}).encode())
    assert caught.value.advice.startswith("run the version of cdcd that wrote the record, or a newer")
    assert "ACLs" in caught.value.advice


@pytest.mark.parametrize(
    "wrong",
    [
        {"end_lsn": 5},
        {"copy": {"pending": [], "floors": {}}},
        {"copy": NO_COPY | {"tables": {"7": {"topic": 5}}}},
        {"part": {"commit_lsn": "0/5"}},
    ],
)
def test_a_record_that_no_version_writes_is_another_programs(wrong: dict[str, object]) -> None:
    with pytest.raises(ProgressUnreadable) as caught:
        load(json.dumps(DOCUMENT | wrong).encode())
    assert caught.value.advice.startswith("cdcd did not write this record")


@pytest.mark.parametrize("value", [b"", b"\xff\xfe", b"[]", b"1", b"{"])
def test_foreign_data_is_not_progress(value: bytes) -> None:
    with pytest.raises(ProgressUnreadable):
        load(value)


def test_the_first_offsets_of_very_many_partitions_are_left_out() -> None:
    """A progress record that fits by itself must not be too large with them."""
    few = {f"shop.public.t{number}": {0: number} for number in range(1_000)}
    many = {f"shop.public.t{number}": {0: number} for number in range(12_000)}
    assert [name for name, _ in first_offsets_headers(few)] == [FIRST_OFFSETS]
    assert first_offsets_headers(many) == []
