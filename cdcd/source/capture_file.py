"""The file of `cdcd capture`: a header with the server and the stream's options, then the frames as received.

In: a `CaptureHeader` and CopyData payloads.  Out: the same, read back, each payload with its byte position.
Format: one line of JSON, then for each payload an int32 length, big-endian, and its bytes.
Invariant: the file is new, and only its owner can read it, since it contains rows. A reader allocates no more memory
than the size of the file.
Must not: decode a payload.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from cdcd.bounded import printable
from cdcd.errors import CaptureError

FORMAT = "cdcd-capture"
FORMAT_VERSION = 1
_LENGTH = struct.Struct(">I")
_HEADER_LIMIT_BYTES = 1 << 20
_PIECE_BYTES = 1 << 20
MAX_FRAME_BYTES = 1 << 30
"""The most that PostgreSQL allocates for a message."""


@dataclass(frozen=True, slots=True)
class CaptureHeader:
    """The origin of a file's frames: the server, the start LSN, and the options of START_REPLICATION."""

    server_version_num: int
    system_identifier: str
    timeline: int
    database: str
    start_lsn: str
    publication_names: tuple[str, ...]
    proto_version: int
    streaming: str
    binary: bool
    messages: bool
    origin: str
    two_phase: bool


_AGAIN = "the file was changed after the capture: run `cdcd capture` again"


def create(path: Path) -> BinaryIO:
    """Create a file that only its owner can read. Raises CaptureError; an existing file is never changed."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise CaptureError(f"{path} cannot be created: {error.strerror}", hint="name a new file") from None
    os.fchmod(descriptor, 0o600)
    return os.fdopen(descriptor, "wb")


def write_header(file: BinaryIO, header: CaptureHeader) -> None:
    """Write the first line."""
    fields = {"format": FORMAT, "format_version": FORMAT_VERSION, **asdict(header)}
    file.write(json.dumps(fields).encode() + b"\n")


def write_frame(file: BinaryIO, payload: bytes) -> None:
    """Write one CopyData payload."""
    file.write(_LENGTH.pack(len(payload)) + payload)


def read_header(file: BinaryIO) -> CaptureHeader:
    """Read the first line. Raises CaptureError for a file that is not of `cdcd capture`, or of another format."""
    try:
        fields = json.loads(file.readline(_HEADER_LIMIT_BYTES))
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict) or fields.pop("format", None) != FORMAT:
        hint = "pass lines of hex on standard input"
        raise CaptureError("not a file of `cdcd capture`: its first line is not a header", hint=hint)
    version = fields.pop("format_version", None)
    if version != FORMAT_VERSION:
        raise CaptureError(
            f"a capture file of format {printable(version)}; this version reads {FORMAT_VERSION}",
            hint="decode it with the version of cdcd that captured it",
        )
    try:
        header = CaptureHeader(**{**fields, "publication_names": tuple(fields["publication_names"])})
    except (TypeError, KeyError):
        raise CaptureError(
            "the header of the capture file lacks fields or has unknown ones", hint=_AGAIN
        ) from None
    if type(header.proto_version) is not int or not isinstance(header.streaming, str):
        raise CaptureError("a field in the header of the capture file has the wrong type", hint=_AGAIN)
    return header


def read_frames(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield each payload with the byte position of its record. Raises CaptureError if the file is truncated."""
    while True:
        at_byte = file.tell()
        length = file.read(_LENGTH.size)
        if not length:
            return
        if len(length) < _LENGTH.size:
            raise _cut(at_byte)
        size_bytes = _LENGTH.unpack(length)[0]
        if size_bytes > MAX_FRAME_BYTES:
            raise CaptureError("a frame is longer than a message from PostgreSQL can be", at_byte=at_byte)
        yield at_byte, _read(file, size_bytes, at_byte)


def _read(file: BinaryIO, size_bytes: int, at_byte: int) -> bytes:
    """Read a payload in pieces, so that a damaged length needs no more memory than the file's size."""
    pieces: list[bytes] = []
    while size_bytes:
        piece = file.read(min(size_bytes, _PIECE_BYTES))
        if not piece:
            raise _cut(at_byte)
        pieces.append(piece)
        size_bytes -= len(piece)
    return b"".join(pieces)


def _cut(at_byte: int) -> CaptureError:
    return CaptureError(
        "the file ends inside a frame",
        hint="the frames before this one are shown; the file is incomplete: run `cdcd capture` again for the rest",
        at_byte=at_byte,
    )
