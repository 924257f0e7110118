"""Foreign data in cdcd's topics and files, too large, a bomb or malformed, gives a limited error, never a crash."""

from __future__ import annotations

import base64
import contextlib
import json
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdcd.bounded import MAX_BYTES, decompress, json_of, printable
from cdcd.cli.decode import _hex_lines
from cdcd.config import load
from cdcd.config.document import MAX_FILE_BYTES
from cdcd.errors import (
    CaptureError,
    CdcdError,
    ConfigError,
    ProgressUnreadable,
    SchemaError,
    SchemasUnreadable,
    SecretUnreadable,
)
from cdcd.redaction import clean
from cdcd.schema import schema_index
from cdcd.schema.compatibility import level_differences
from cdcd.schema.schema_index import SchemaIndex, schema_of
from cdcd.secret_files import MAX_SECRET_BYTES, read_secret_file
from cdcd.sink.progress import dump
from cdcd.sink.progress import load as load_progress
from cdcd.sink.topic_identity import TopicIdentities
from cdcd.source import capture_file, publication_diff
from tests.support.bombs import zlib_bomb
from tests.unit.sink.test_progress import PROGRESS

DEEP = b"[" * 200_000
DIGITS = b"9" * 100_000
BOMB = zlib_bomb(200)
CANARY = "canary-of-a-row"


def record(**over: Any) -> bytes:
    return json.dumps(json.loads(dump(PROGRESS)) | over).encode()


def schema_record(**over: Any) -> bytes:
    whole = {
        "format": 1, "subject": "s", "version": 1, "id": 1, "schema": '"string"', "compatibility": "NONE", "slot": ""
    }  # fmt: skip
    return json.dumps(whole | over).encode()


def topics(value: bytes) -> object:
    return TopicIdentities.load(value, 0)


def of_publications(value: bytes) -> object:
    return publication_diff.load(base64.b64encode(value).decode())


def of_schemas(value: bytes) -> object:
    return SchemaIndex().take(b"k", value)


HOSTILE: list[tuple[str, Callable[[bytes], object], bytes, type[CdcdError]]] = [
    *(
        (f"{name}: {kind}", read, value, error)
        for name, read, error in (
            ("progress", load_progress, ProgressUnreadable),
            ("topics", topics, ProgressUnreadable),
            ("publications", of_publications, ProgressUnreadable),
            ("schemas", of_schemas, SchemasUnreadable),
        )
        for kind, value in (
            ("deep", DEEP),
            ("a deep object", b'{"a":' * 200_000),
            ("digits", DIGITS),
            ("bytes", bytes(range(256))),
            ("empty", b""),
            ("a list", b"[]"),
            ("a bomb", BOMB),
            ("a bomb that is cut off", BOMB[:1000]),
            ("compressed, deep", zlib.compress(DEEP)),
            ("compressed, and more", zlib.compress(b"{}") + b"x"),
            ("too large", b'"' + b" " * (MAX_BYTES + 1) + b'"'),
            ("another format", json.dumps({"format": CANARY * 1_000}).encode()),
            ("another format, compressed", zlib.compress(json.dumps({"format": CANARY * 1_000}).encode())),
        )
    ),
    *(
        (f"progress: {name} is {value!r:.20}", load_progress, record(**{name: value}), ProgressUnreadable)
        for name in ("timeline", "commit_us", "topics_at")
        for value in (1 << 63, -(1 << 64), 1e400, True, "1", None)
    ),
    ("progress: a partition", load_progress, record(offsets={"t": {"9" * 5_000: 1}}), ProgressUnreadable),
    ("progress: an offset", load_progress, record(offsets={"t": {"0": 1 << 63}}), ProgressUnreadable),
    ("progress: a key", load_progress, record(**{CANARY * 1_000: 1}), ProgressUnreadable),
    ("schemas: an id", of_schemas, schema_record(id=1 << 31), SchemasUnreadable),
    ("schemas: no id", of_schemas, schema_record(id=0), SchemasUnreadable),
    ("schemas: a version", of_schemas, schema_record(version=-1), SchemasUnreadable),
    (
        "schemas: a large one",
        of_schemas,
        schema_record(schema=" " * schema_index.MAX_RECORD_BYTES),
        SchemasUnreadable,
    ),
]


@pytest.mark.parametrize(
    ("read", "value", "error"), [one[1:] for one in HOSTILE], ids=[one[0] for one in HOSTILE]
)
def test_a_record_of_others_is_one_error_in_a_limited_text(
    read: Callable[[bytes], object], value: bytes, error: type[CdcdError]
) -> None:
    with pytest.raises(error) as caught:
        read(value)
    text = str(caught.value)
    assert text.isprintable()
    assert len(text) < 1_500
    assert text.count(CANARY) < 40


def test_a_bomb_costs_no_more_memory_than_its_limit() -> None:
    tracemalloc.start()
    with pytest.raises(ValueError, match="more than"):
        decompress(BOMB)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 3 * MAX_BYTES


def test_valid_data_is_read() -> None:
    assert json_of(decompress(zlib.compress(b'{"a": 1}'))) == {"a": 1}
    assert [printable(one) for one in (3, "a", [], "x" * 100)] == [
        "3",
        "'a'",
        "(of type list)",
        "(of type str)",
    ]


def test_schemas_of_others_end_where_memory_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_index, "MAX_INDEX_CHARACTERS", 10_000)
    one = SchemaIndex()

    def take_many() -> None:
        for number in range(1, 100):
            text = json.dumps({"type": "string", "doc": "x" * 500, "number": number})
            one.take(b"%d" % number, schema_record(version=number, id=number, schema=text))

    with pytest.raises(SchemasUnreadable, match="more than 10000 characters"):
        take_many()


@pytest.mark.parametrize(
    "text", ["", "no", DEEP.decode(), DIGITS.decode()], ids=lambda text: text[:3] or "empty"
)
def test_a_foreign_text_that_is_not_a_schema_is_an_error(text: str) -> None:
    found = SchemaIndex().take(b"k", schema_record(schema=text))
    assert found is not None
    with pytest.raises(SchemasUnreadable):
        schema_of(found)


def deep_schema(depth: int) -> Any:
    schema: Any = "int"
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return {"type": "record", "name": "V", "fields": [{"name": "id", "type": schema}]}


NEW = {"type": "record", "name": "V", "fields": [{"name": "id", "type": "int"}]}


@pytest.mark.parametrize(
    "earlier",
    [
        {},
        5,
        None,
        {"type": "record"},
        {"type": "record", "name": "V", "fields": 5},
        {"type": "record", "name": "V", "fields": [5, None]},
        {"type": "record", "name": 5, "fields": [{}]},
        {
            "type": "record",
            "name": "V",
            "aliases": 5,
            "fields": [{"name": "id", "type": "int", "aliases": 7}],
        },
        deep_schema(800),
    ],
    ids=lambda earlier: str(earlier)[:40],
)
def test_an_earlier_schema_of_others_is_no_defect(earlier: Any) -> None:
    """It is either reported as invalid or compared."""
    for level in ("BACKWARD", "FORWARD_TRANSITIVE", "FULL"):
        with contextlib.suppress(SchemaError):
            assert isinstance(level_differences(level, NEW, [earlier]), list)


# --- files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"name: shop\n#" + b"x" * MAX_FILE_BYTES, "the limit of a configuration"),
        (b"[" * 100_000, "cannot construct"),
        (b"name: !!timestamp x\n", "cannot construct"),
        (b"name: !!bool x\n", "cannot construct"),
        (b'name: !!int ""\n', "cannot construct"),
        (b'name: !!float ""\n', "cannot construct"),
        (b"a: &a [x]\nb: &b [*a,*a]\nc: &c [*b,*b]\nd: [*c,*c]\n", "aliases are not supported"),
        (b"a: &a {b: *a}\n", "aliases are not supported"),
        (b"".join(b"a: 1\n" for _ in range(2_000)), "and 1899 more"),
        (b"".join(b"k%d: 1\n" % number for number in range(2_000)), "more"),
        (b"x" * 500_000 + b": 1\n", "is not YAML"),
        (b"name: \x1b[31m\n", "a character that YAML does not allow"),
        (b'name: "shop\\u001b[31m\\n\\u202e"\n', "must begin with a letter"),
        (b"name: shop\n\xff", "is not UTF-8 text"),
        (b"name: shop\nsource: {slot: " + b"9" * 100_000 + b"}\n", ""),
    ],
    ids=lambda one: str(one[:12]),
)
def test_a_configuration_of_anything_is_a_list_of_problems(
    text: bytes, expected: str, tmp_path: Path
) -> None:
    path = tmp_path / "prod.yaml"
    path.write_bytes(text)
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    assert expected in "\n".join(caught.value.problems)
    assert len(caught.value.problems) <= 101
    assert all(len(clean(line, 2_000)) < 2_100 for line in caught.value.problems)


def test_a_file_without_end_is_no_configuration() -> None:
    with pytest.raises(ConfigError):
        load("/dev/zero", {})


def test_a_secret_has_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"x" * (MAX_SECRET_BYTES + 1))
    with pytest.raises(SecretUnreadable, match="more than"):
        read_secret_file(path)
    with pytest.raises(SecretUnreadable, match="more than"):
        read_secret_file(Path("/dev/zero"))


def test_a_captured_frame_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "capture"
    path.write_bytes((capture_file.MAX_FRAME_BYTES + 1).to_bytes(4, "big") + b"x" * 100)
    with path.open("rb") as file, pytest.raises(CaptureError, match="longer than a message"):
        list(capture_file.read_frames(file))
    monkeypatch.setattr("cdcd.cli.decode._MAX_LINE_BYTES", 100)
    path.write_bytes(b"00" * 20 + b"\n" + b"00" * 60 + b"\n")
    with path.open("rb") as file, pytest.raises(CaptureError, match="longer than a message"):
        list(_hex_lines(file))
