"""The fields of a command in JSON: what is accepted, what is refused, and that no content is repeated."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cdcd.snapshot.command_json import MAX_COMMAND_BYTES, MAX_TABLES, BadCommand, command_of, is_table_name
from cdcd.snapshot.control import SnapshotCommand

CANARY = "canary\x1b[2J"


@pytest.mark.parametrize(
    ("fields", "command"),
    [
        ({"action": "start", "tables": ["shop.orders"]}, SnapshotCommand("start", ("shop.orders",))),
        (
            {"action": "start", "tables": ["s.a", "s.b", "s.a"], "where": "id > 7", "recopy": True},
            SnapshotCommand("start", ("s.a", "s.b"), "id > 7", True),
        ),
        ({"action": "start", "all": True, "recopy": True}, SnapshotCommand("start", recopy=True)),
        ({"action": "start", "tables": ["s.a\x1b[2J\n"]}, SnapshotCommand("start", ("s.a\x1b[2J\n",))),
        (
            {"action": "start", "tables": ["s.a"], "blocking": True},
            SnapshotCommand("start", ("s.a",), is_blocking=True),
        ),
        (
            {"action": "start", "tables": ["s.a"], "compare": True},
            SnapshotCommand("start", ("s.a",), compare=True),
        ),
        ({"action": "start", "all": True, "compare": True}, SnapshotCommand("start", compare=True)),
        ({"action": "pause"}, SnapshotCommand("pause")),
        ({"action": "resume", "tables": []}, SnapshotCommand("resume")),
        (
            {"action": "stop", "tables": ["s.a"], "where": None, "recopy": False},
            SnapshotCommand("stop", ("s.a",)),
        ),
    ],
)
def test_a_command_has_its_fields(fields: dict[str, Any], command: SnapshotCommand) -> None:
    assert command_of(json.dumps(fields).encode()) == command


START = {"action": "start", "tables": ["s.a"]}
BAD = {
    "no JSON": CANARY.encode(),
    "no UTF-8": b'{"action": "\xff"}',
    "deep": b"[" * 60_000,
    "a long number": b'{"action": ' + b"9" * 60_000 + b"}",
    "a list": [START],
    "null": None,
    "too long": {**START, "where": "x" * MAX_COMMAND_BYTES},
    "no action": {"tables": ["s.a"]},
    "another action": {"action": CANARY},
    "an action that is a list": {"action": ["start"]},
    "another field": {**START, CANARY: 1},
    "no tables": {"action": "start"},
    "all that is not a flag": {"action": "start", "all": 1},
    "all and names": START | {"all": True},
    "all and a condition": {"action": "start", "all": True, "where": "true"},
    "blocking that is not a flag": START | {"blocking": "true"},
    "blocking of another action": {"action": "pause", "blocking": True},
    "all as a blocking snapshot": {"action": "start", "all": True, "blocking": True},
    "all of another action": {"action": "stop", "all": True},
    "a text as tables": {"action": "stop", "tables": "s.a"},
    "too many tables": {**START, "tables": [f"s.t{number}" for number in range(MAX_TABLES + 1)]},
    "a number as table": {**START, "tables": [7]},
    "no schema": {**START, "tables": [CANARY]},
    "an empty schema": {**START, "tables": [".a"]},
    "an empty table": {**START, "tables": ["s."]},
    "a long name": {**START, "tables": ["s." + "x" * 511]},
    "NUL in a name": {**START, "tables": ["s.a\0b"]},
    "half of a pair in a name": {**START, "tables": ["s.\ud800"]},
    "a condition that is a number": {**START, "where": 1},
    "an empty condition": {**START, "where": " "},
    "NUL in a condition": {**START, "where": "a = '\0'"},
    "a long condition": {**START, "where": "x" * ((16 << 10) + 1)},
    "recopy as a text": {**START, "recopy": "false"},
    "a condition for a pause": {"action": "pause", "where": "true"},
    "a stop that copies anew": {"action": "stop", "recopy": True},
    "a pause that compares": {"action": "pause", "compare": True},
    "compared with a truncate event": {**START, "recopy": True, "compare": True},
    "a part of the rows is compared": {**START, "where": "id > 7", "compare": True},
    "compared while the stream waits": {**START, "blocking": True, "compare": True},
}


@pytest.mark.parametrize("kind", BAD)
def test_what_is_no_command_is_refused_without_its_content(kind: str) -> None:
    bad = BAD[kind]
    with pytest.raises(BadCommand) as refused:
        command_of(bad if isinstance(bad, bytes) else json.dumps(bad).encode())
    assert "canary" not in str(refused.value)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(
    ("name", "expected"), [("a.b", True), ("a.b.c", True), ("ü.日", True), ("a", False), ("", False)]
)
def test_a_name_has_a_schema(name: str, expected: bool) -> None:
    assert is_table_name(name) is expected
