"""`cdcd decode`: the output for each message, the location of an error, the xids of a stream."""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from cdcd.cli import main
from cdcd.pgoutput.messages import FORMAT_OF
from cdcd.source.capture_file import CaptureHeader, create, write_frame, write_header
from tests.unit.pgoutput.golden import GOLDEN, Golden

HEADER = CaptureHeader(180_004, "7", 1, "shop", "0/10", ("p",), 4, "parallel", False, True, "any", False)
BEGIN = bytes.fromhex("42 00000016b374d848 0002a3b1c4d5e6f7 000002e7")


def xlog(payload: bytes) -> bytes:
    return b"w" + struct.pack(">QQq", 0x1_0000_0002, 0x1_0000_0003, 77) + payload


class Cdcd:
    """Runs the command in this process, with standard input from a text."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def decode(self, *words: str, given: str = "") -> tuple[int, list[dict[str, Any]], str]:
        """Return exit status, output lines, standard error."""
        self._monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
        status = main(["decode", *words])
        printed = self._capsys.readouterr()
        return status, [json.loads(line) for line in printed.out.splitlines()], printed.err


@pytest.fixture
def cdcd(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cdcd:
    return Cdcd(monkeypatch, capsys)


def test_a_frame_is_shown_with_its_own_fields_and_those_of_its_message(cdcd: Cdcd) -> None:
    keepalive = b"k" + struct.pack(">QqB", 0x16_B374_D848, -5, 1)
    status, lines, _ = cdcd.decode(given=f"{xlog(BEGIN).hex()}\n\n{keepalive.hex(' ')}\n")
    assert status == 0
    assert lines == [
        {
            "line": 1,
            "frame": "XLogData",
            "start_lsn": "1/2",
            "end_lsn": "1/3",
            "sent_at_pg_us": 77,
            "message": "Begin",
            "type": "B",
            "in_stream": False,
            "fields": {"final_lsn": "16/B374D848", "commit_pg_us": 0x0002A3B1C4D5E6F7, "xid": 743},
        },
        {
            "line": 3,
            "frame": "Primary keepalive",
            "wal_end_lsn": "16/B374D848",
            "sent_at_pg_us": -5,
            "reply_requested": True,
        },
    ]


def test_a_terminal_that_is_not_unicode_gets_escapes(cdcd: Cdcd, monkeypatch: pytest.MonkeyPatch) -> None:
    message = b"M" + bytes(9) + "h\u00e9".encode() + bytes(5)
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", terminal)
    status, _, _ = cdcd.decode("--messages", given=message.hex())
    assert status == 0
    assert json.loads(terminal.buffer.getvalue())["fields"]["prefix"] == "h\u00e9"


def test_a_full_disk_is_reported_in_one_line(cdcd: Cdcd, monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "wb", buffering=0) as full:
        monkeypatch.setattr("sys.stdout", io.TextIOWrapper(full, write_through=True))
        status, _, err = cdcd.decode("--messages", given=BEGIN.hex())
    assert status == 1
    assert err == (
        "cdcd: CDCD-CAPTURE: standard output cannot be written: No space left on device"
        " -> free disk space for the output\n"
    )


def test_what_a_standby_sends_is_shown_too(cdcd: Cdcd) -> None:
    status = bytes.fromhex("72 0000000300000003 0000000200000002 0000000100000001 fffffffffffffff7 00")
    feedback = bytes.fromhex("68 0000000000000102 ffffffff 00000001 00000003 00000002")
    _, lines, _ = cdcd.decode(given=f"{status.hex()}\n{feedback.hex()}")
    assert lines[0] == {
        "line": 1,
        "frame": "Standby status update",
        "write_lsn": "3/3",
        "flush_lsn": "2/2",
        "apply_lsn": "1/1",
        "sent_at_pg_us": -9,
        "reply_requested": False,
    }
    assert (lines[1]["xmin"], lines[1]["catalog_xmin"], lines[1]["catalog_xmin_epoch"]) == (2**32 - 1, 3, 2)


NEW = [{"kind": "t", "text": "42"}, {"kind": "n"}, {"kind": "u"}, {"kind": "b", "hex": ""}]
OLD = {"marker": "O", "columns": [{"kind": "t", "text": "é"}]}
SHOWN: dict[str, dict[str, Any]] = {
    "Message in a stream": {
        "xid": 743,
        "transactional": True,
        "lsn": "16/B374D848",
        "prefix": "p",
        "content": {"text": "x"},
    },
    "Relation": {
        "relid": 16385,
        "namespace": "app",
        "name": "ord",
        "identity": "d",
        "columns": [
            {"is_key": True, "name": "id", "type_oid": 23, "typmod": -1},
            {"is_key": False, "name": "n", "type_oid": 1700, "typmod": 655366},
        ],
    },
    "Insert": {"relid": 16385, "new": NEW},
    "Update with identity FULL in a stream": {"xid": 743, "relid": 16385, "old": OLD, "new": NEW},
    "Truncate": {"relid_count": 2, "options": 3, "relids": [1, 2]},
    "Stream Start": {"xid": 743, "is_first_segment": True},
    "Stream Abort": {"xid": 743, "subxid": 744},
    "Stream Abort, parallel": {
        "xid": 743,
        "subxid": 744,
        "abort_lsn": "16/B374D848",
        "abort_pg_us": 0x0002A3B1C4D5E6F7,
    },
    "Rollback Prepared": {
        "flags": 0,
        "prepare_end_lsn": "16/B374D848",
        "rollback_end_lsn": "16/B374D878",
        "prepare_pg_us": 0x0002A3B1C4D5E6F7,
        "rollback_pg_us": 0x0002A3B1C4D5E6F8,
        "xid": 743,
        "gid": "gid",
    },
}


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda one: one.name)
def test_every_message_is_shown_with_every_field_of_the_table(golden: Golden, cdcd: Cdcd) -> None:
    start = ["53 00000001 01"] if golden.in_stream else []
    streaming = "parallel" if golden.streaming_parallel else "on"
    words = ["--messages", "--proto-version", str(golden.protocol_version), "--streaming", streaming]
    status, lines, _ = cdcd.decode(*words, given="\n".join([*start, "\\x" + golden.payload.hex()]))
    row = FORMAT_OF[type(golden.message)]
    reported = lines[-1]
    assert (status, reported["message"], reported["type"]) == (0, row.name, chr(row.type_byte))
    assert reported["in_stream"] == golden.in_stream
    absent = {one.name for one in row.fields if getattr(golden.message, one.name) is None} - {"old"}
    assert list(reported["fields"]) == [one.name for one in row.fields if one.name not in absent]
    assert reported["fields"] == SHOWN.get(golden.name, reported["fields"])


def test_xids_are_read_between_stream_start_and_stop_only(cdcd: Cdcd) -> None:
    inside = "49 00000007 00004001 4e 0001 6e"
    outside = "49 00004001 4e 0001 6e"
    _, lines, _ = cdcd.decode(
        "--messages", given="\n".join([outside, "53 00000007 01", inside, "45", outside])
    )
    assert [line["fields"].get("xid") for line in lines if line["type"] == "I"] == [None, 7, None]


def test_bytes_that_are_not_utf8_and_binary_values_are_shown_as_hex(cdcd: Cdcd) -> None:
    _, lines, _ = cdcd.decode("--messages", given="49 00000001 4e 0002 74 00000001 ff 62 00000004 00000041")
    assert lines[0]["fields"]["new"] == [{"kind": "t", "hex": "ff"}, {"kind": "b", "hex": "00000041"}]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("5a", ["line=2", "message type 0x5a"]),
        ("42 00", ["line=2", "Begin ends inside final_lsn"]),
        (BEGIN.hex() + "00", ["line=2", "Begin has 1 bytes after its last field"]),
        ("4", ["line=2", "not hexadecimal"]),
        ("secret", ["line=2", "not hexadecimal"]),
        ("49 00000001 4e 0001 74 00000009 736563726574", ["line=2", "Insert ends inside new[0]"]),
    ],
)
def test_an_error_is_one_line_with_its_place_after_what_was_right(
    given: str, expected: list[str], cdcd: Cdcd
) -> None:
    status, lines, err = cdcd.decode("--messages", given=f"{BEGIN.hex()}\n{given}\n{BEGIN.hex()}\n")
    assert status == 1
    assert len(lines) == 1
    assert len(err.splitlines()) == 1
    assert all(text in err for text in expected), err
    assert "secret" not in err


@pytest.mark.parametrize(
    ("words", "given", "advice"),
    [
        ((), BEGIN.hex(), "for pgoutput messages without their frames, add --messages"),
        (("--messages",), xlog(BEGIN).hex(), "for whole CopyData frames, omit --messages"),
        (("--messages",), "no hex", "a line is the hex of one message"),
    ],
)
def test_an_error_says_what_else_the_lines_may_be(
    words: tuple[str, ...], given: str, advice: str, cdcd: Cdcd
) -> None:
    status, lines, err = cdcd.decode(*words, given=given)
    assert (status, lines, len(err.splitlines())) == (1, [], 1)
    assert advice in err


def test_a_version_that_does_not_have_a_message_refuses_it(cdcd: Cdcd) -> None:
    status, _, err = cdcd.decode("--messages", "--proto-version", "1", given="53 00000007 01")
    assert status == 1
    assert "Stream Start does not exist in protocol version 1" in err


def capture_file(path: Path, *payloads: bytes) -> Path:
    with create(path) as file:
        write_header(file, HEADER)
        for payload in payloads:
            write_frame(file, payload)
    return path


def test_a_files_header_says_how_it_is_read_and_errors_say_the_byte(cdcd: Cdcd, tmp_path: Path) -> None:
    abort = bytes.fromhex("41 00000001 00000001 00000016b374d848 0002a3b1c4d5e6f7")
    path = capture_file(tmp_path / "wire", xlog(abort), xlog(BEGIN), b"w short")
    status, lines, err = cdcd.decode(str(path))
    assert status == 1
    assert lines[0]["fields"]["abort_lsn"] == "16/B374D848"
    header_bytes = len(path.read_bytes().split(b"\n")[0]) + 1
    second = header_bytes + 4 + len(xlog(abort))
    assert [line["at_byte"] for line in lines] == [header_bytes, second]
    assert f"at_byte={second + 4 + len(xlog(BEGIN))}" in err
    assert "XLogData ends inside start_lsn" in err
    status, _, err = cdcd.decode(str(path), "--streaming", "on")
    assert status == 1
    assert "Stream Abort has 16 bytes after its last field" in err


def test_a_file_that_is_cut_is_shown_up_to_there(cdcd: Cdcd, tmp_path: Path) -> None:
    whole = capture_file(tmp_path / "wire", xlog(BEGIN), xlog(BEGIN)).read_bytes()
    for missing in range(1, 4 + len(xlog(BEGIN))):
        cut = tmp_path / "cut"
        cut.write_bytes(whole[:-missing])
        status, lines, err = cdcd.decode(str(cut))
        assert (status, len(lines)) == (1, 1)
        assert f"ends inside a frame [at_byte={len(whole) - 4 - len(xlog(BEGIN))}]" in err


def header_line(**over: object) -> bytes:
    """Return a header with a wrong field."""
    fields: dict[str, object] = {
        "format": "cdcd-capture", "format_version": 1, "server_version_num": 180000, "system_identifier": "1",
        "timeline": 1, "database": "d", "start_lsn": "0/0", "publication_names": ["p"], "proto_version": 4,
        "streaming": "on", "binary": False, "messages": True, "origin": "any", "two_phase": False,
    }  # fmt: skip
    return json.dumps(fields | over).encode() + b"\n"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "not a header"),
        (b"\xff\xfe\n", "not a header"),
        (b"[]\n", "not a header"),
        (b"[" * 100_000 + b"\n", "not a header"),
        (b'{"format": "other"}\n', "not a header"),
        (b'{"format": "cdcd-capture", "format_version": 2}\n', "format 2; this version reads 1"),
        (b'{"format": "cdcd-capture", "format_version": 1}\n', "lacks fields"),
        (header_line(proto_version=None), "has the wrong type"),
        (header_line(proto_version="4"), "has the wrong type"),
        (header_line(streaming=[]), "has the wrong type"),
    ],
)
def test_what_is_not_a_capture_file_is_refused(
    content: bytes, expected: str, cdcd: Cdcd, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(content)
    status, lines, err = cdcd.decode(str(tmp_path / "file"))
    assert (status, lines) == (1, [])
    assert expected in err


def test_a_file_that_is_not_there_is_an_error_of_one_line(cdcd: Cdcd, tmp_path: Path) -> None:
    status, _, err = cdcd.decode(str(tmp_path / "none"))
    assert (status, len(err.splitlines())) == (1, 1)


def test_a_broken_length_costs_no_memory(cdcd: Cdcd, tmp_path: Path) -> None:
    path = capture_file(tmp_path / "wire")
    with path.open("ab") as file:
        file.write(b"\x3f\xff\xff\xffw")
    status, _, err = cdcd.decode(str(path))
    assert status == 1
    assert "ends inside a frame" in err
