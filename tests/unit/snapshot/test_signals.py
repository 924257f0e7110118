"""Signals in Debezium's format: the command of each, and the refusal of all that is not one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cdcd.snapshot.command_json import MAX_COMMAND_BYTES, MAX_TABLES, BadCommand
from cdcd.snapshot.control import SnapshotCommand
from cdcd.snapshot.signals import command_of_signal

CANARY = "canary\x1b[2J"
Fields = dict[str, Any]


def start(*tables: Any, **data: Any) -> Fields:
    more = {name.replace("_", "-"): value for name, value in data.items()}
    return {"id": "1", "type": "execute-snapshot", "data": {"data-collections": list(tables), **more}}


def condition(table: Any, where: Any) -> Fields:
    return {"data-collection": table, "filter": where}


def of(kind: str, *tables: str) -> Fields:
    return {"type": kind, "data": {"data-collections": list(tables), "type": "incremental"}}


# The documentation of Debezium has signals of this form.
OF_DEBEZIUM = b"""{"type": "execute-snapshot", "data": {"data-collections": ["schema1.table1", "schema1.table2"],
 "type": "INCREMENTAL", "additional-conditions": []}}"""


@pytest.mark.parametrize(
    ("signal", "command"),
    [
        (OF_DEBEZIUM, SnapshotCommand("start", ("schema1.table1", "schema1.table2"), signal_offset=7)),
        (start("s.a"), SnapshotCommand("start", ("s.a",), signal_offset=7)),
        (
            start("s.a", type="BLOCKING", additional_conditions=[condition("s.a", "x")]),
            SnapshotCommand("start", ("s.a",), "x", signal_offset=7, is_blocking=True),
        ),
        (start("s.a", type="incremental", recopy=True), SnapshotCommand("start", ("s.a",), None, True, 7)),
        (start("s.a", compare=True), SnapshotCommand("start", ("s.a",), signal_offset=7, compare=True)),
        (
            start("s.a", "s.b", additional_conditions=[condition("s.b", "x"), condition("s.a", "x")]),
            SnapshotCommand("start", ("s.a", "s.b"), "x", False, 7),
        ),
        (start("s.a", additional_conditions=None), SnapshotCommand("start", ("s.a",), signal_offset=7)),
        (of("stop-snapshot", "s.a"), SnapshotCommand("stop", ("s.a",), signal_offset=7)),
        (of("stop-snapshot"), SnapshotCommand("stop", signal_offset=7)),
        (
            {"type": "stop-snapshot", "data": {"data-collections": None}},
            SnapshotCommand("stop", signal_offset=7),
        ),
        ({"type": "pause-snapshot"}, SnapshotCommand("pause", signal_offset=7)),
        (
            {"id": None, "type": "resume-snapshot", "data": None, "more": 1},
            SnapshotCommand("resume", signal_offset=7),
        ),
    ],
)
def test_a_signal_is_a_command_with_its_offset(signal: Fields | bytes, command: SnapshotCommand) -> None:
    value = signal if isinstance(signal, bytes) else json.dumps(signal).encode()
    assert command_of_signal(value, 7) == command


BAD: dict[str, Any] = {
    "no value": None,
    "no JSON": CANARY.encode(),
    "no UTF-8": b"\xff",
    "Avro": b"\0\0\0\0\7\2\2x",
    "deep": b"[" * 60_000,
    "too long": b" " * (MAX_COMMAND_BYTES + 1),
    "a list": [start("s.a")],
    "no type": {"data": {}},
    "another type": {"type": CANARY},
    "a type that is a list": {"type": [CANARY]},
    "log": {"type": "log", "data": {"message": CANARY}},
    "data that is a text": {"type": "stop-snapshot", "data": CANARY},
    "no tables to start": start(),
    "no data to start": {"type": "execute-snapshot"},
    "another type of snapshot": start("s.a", type=CANARY),
    "a type of another action": {"type": "stop-snapshot", "data": {"type": "blocking"}},
    "a type of snapshot that is a number": start("s.a", type=1),
    "a surrogate key": start("s.a", surrogate_key="id"),
    "the former condition": start("s.a", additional_condition=CANARY),
    "tables as a text": {"type": "stop-snapshot", "data": {"data-collections": CANARY}},
    "too many tables": start(*(f"s.t{number}" for number in range(MAX_TABLES + 1))),
    "a table without a schema": start(CANARY),
    "a table that is a number": start(7),
    "NUL": start("s.a\0"),
    "recopy as a text": start("s.a", recopy=CANARY),
    "recopy of a stop": {"type": "stop-snapshot", "data": {"recopy": True}},
    "conditions that are a mapping": start("s.a", additional_conditions={"s.a": CANARY}),
    "more conditions than tables": start("s.a", additional_conditions=[condition("s.a", "x")] * 2),
    "two conditions of one table": start("s.a", "s.b", additional_conditions=[condition("s.a", "x")] * 2),
    "a condition that is a text": start("s.a", additional_conditions=[CANARY]),
    "a condition of another table": start("s.a", additional_conditions=[condition("s.b", CANARY)]),
    "a condition of a list": start("s.a", additional_conditions=[condition(["s.a"], CANARY)]),
    "a condition without a filter": start("s.a", additional_conditions=[{"data-collection": "s.a"}]),
    "a filter that is a number": start("s.a", additional_conditions=[condition("s.a", 7)]),
    "an unknown field of a condition": start(
        "s.a", additional_conditions=[condition("s.a", "x") | {CANARY: 1}]
    ),
    "different conditions": start(
        "s.a", "s.b", additional_conditions=[condition("s.a", CANARY), condition("s.b", "y")]
    ),
    "a condition of some tables": start("s.a", "s.b", additional_conditions=[condition("s.a", CANARY)]),
    "a condition of a pause": {
        "type": "pause-snapshot",
        "data": {"data-collections": ["s.a"], "additional-conditions": [condition("s.a", CANARY)]},
    },
}


@pytest.mark.parametrize("kind", BAD)
def test_what_is_no_signal_is_refused_without_its_content(kind: str) -> None:
    bad = BAD[kind]
    value = bad if isinstance(bad, bytes | None) else json.dumps(bad).encode()
    with pytest.raises(BadCommand) as refused:
        command_of_signal(value, 7)
    assert "canary" not in str(refused.value)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(
    "name", [r"public\.orders", "public.*", "s.(a|b)", "s.a?", "^s.a", "s.a$", "s.[ab]", "s.a{2}"]
)
def test_a_regular_expression_is_refused(name: str) -> None:
    """Debezium would match several tables, and a name taken literally would match none."""
    with pytest.raises(BadCommand, match="regular expression"):
        command_of_signal(json.dumps(start("s.ok", name)).encode(), 7)
