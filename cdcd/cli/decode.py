"""`cdcd decode`: each captured message as one line of JSON.

Comes in: a capture file, or lines of hex.  Goes out: JSON lines on standard output, an exit status.
Invariant: `Reader` tracks whether a message is inside a stream segment, because only such a message has an xid. An
error has its position in the input, and everything before it has been printed.
Must not: connect anywhere. The command shows row values on purpose; its errors have none.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from typing import Any, BinaryIO

from cdcd.cli.output import ascii_escapes
from cdcd.errors import EXIT_OK, CaptureError, CdcdError
from cdcd.lsn import format_lsn
from cdcd.pgoutput.decode import decode
from cdcd.pgoutput.messages import FORMAT_OF, StreamStart, StreamStop
from cdcd.pgoutput.shown import message_fields
from cdcd.source.capture_file import MAX_FRAME_BYTES, read_frames, read_header
from cdcd.source.copyboth import FRAME_OF, Frame, XLogData, read_frame

Place = tuple[str, int]
"""`("at_byte", 120)` or `("line", 3)`."""

_HEX_PROTO_VERSION = 4
_HEX_STREAMING = "on"
_MAX_LINE_BYTES = 2 * MAX_FRAME_BYTES + 16
_ADVICE = "check --proto-version and --streaming; if both are right, report the message as unknown"
_ADVICE_FOR_HEX = {
    True: f"for pgoutput messages without their frames, add --messages; {_ADVICE}",
    False: f"for whole CopyData frames, omit --messages; {_ADVICE}",
}
"""By whether the lines are read as frames."""


def run(options: argparse.Namespace) -> int:
    """Print every message. Raises cdcd's errors, with the position in the input."""
    if options.file is None:
        reader = Reader(options.proto_version or _HEX_PROTO_VERSION, options.streaming or _HEX_STREAMING)
        read = reader.frame if options.is_frames else reader.message
        _print(read, _hex_lines(sys.stdin.buffer), _ADVICE_FOR_HEX[options.is_frames])
        return EXIT_OK
    try:
        file = options.file.open("rb")
    except OSError as error:
        raise CaptureError(
            f"{options.file} cannot be read: {error.strerror}",
            hint="give the path of a file that exists and that this user may read",
        ) from None
    with file:
        header = read_header(file)
        reader = Reader(options.proto_version or header.proto_version, options.streaming or header.streaming)
        _print(reader.frame, ((("at_byte", at), data) for at, data in read_frames(file)), _ADVICE)
    return EXIT_OK


class Reader:
    """Reads the messages of one walsender session, in order."""

    def __init__(self, proto_version: int, streaming: str) -> None:
        self._proto_version = proto_version
        self._is_parallel = streaming == "parallel"
        self._in_stream = False

    def frame(self, data: bytes) -> dict[str, Any]:
        """Return a CopyData payload's fields, with those of the message in it. Raises ProtocolError."""
        frame = read_frame(data)
        return _shown_frame(frame) | (self.message(frame.payload) if isinstance(frame, XLogData) else {})

    def message(self, payload: bytes) -> dict[str, Any]:
        """Return a pgoutput message's fields. Raises ProtocolError."""
        in_stream = self._in_stream
        message = decode(
            payload,
            in_stream=in_stream,
            protocol_version=self._proto_version,
            streaming_parallel=self._is_parallel,
        )
        if isinstance(message, StreamStart | StreamStop):
            self._in_stream = isinstance(message, StreamStart)
        row = FORMAT_OF[type(message)]
        reported = {"message": row.name, "type": chr(row.type_byte), "in_stream": in_stream}
        return reported | {"fields": message_fields(message)}


def _print(
    read: Callable[[bytes], dict[str, Any]], parts: Iterable[tuple[Place, bytes]], advice: str
) -> None:
    is_unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    for (unit, place), data in parts:
        try:
            reported = read(data)
        except CdcdError as error:
            error.context[unit] = place
            error.advice = advice
            raise
        line = ascii_escapes(json.dumps({unit: place, **reported}, ensure_ascii=not is_unicode)) + "\n"
        with _writing():
            sys.stdout.write(line)
    with _writing():
        sys.stdout.flush()


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    """Raise CaptureError if the output cannot be written; a closed pipe is no error here."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CaptureError(
            f"standard output cannot be written: {error.strerror}", hint="free disk space for the output"
        ) from None


def _hex_lines(stream: BinaryIO) -> Iterator[tuple[Place, bytes]]:
    """Yield the bytes of each line; blanks are skipped, psql's `\\x` in front is allowed."""
    lines = iter(lambda: stream.readline(_MAX_LINE_BYTES), b"")
    for number, line in enumerate(lines, 1):
        if len(line) == _MAX_LINE_BYTES:
            raise CaptureError("the line is longer than a message of PostgreSQL can be", line=number)
        text = line.decode("ascii", "replace").strip()
        if not text:
            continue
        try:
            yield ("line", number), bytes.fromhex(text.removeprefix("\\x"))
        except ValueError:
            hint = "a line is the hex of one message, as psql -At shows a bytea"
            raise CaptureError("not hexadecimal", hint=hint, line=number) from None


def _shown_frame(frame: Frame) -> dict[str, Any]:
    named = {one.name: getattr(frame, one.name) for one in fields(frame) if one.name != "payload"}
    reported = {name: format_lsn(value) if name.endswith("_lsn") else value for name, value in named.items()}
    return {"frame": FRAME_OF[type(frame)].name, **reported}
