"""`cdcd capture`: write the frames of a stream to a file.

Comes in: a configuration, a file's name, limits.  Goes out: an exit status; the progress on standard error.
Invariant: the file ends with a complete frame, also after Ctrl-C or SIGTERM, unless a write to it fails.
Must not: print a value.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from concurrent.futures import Future, wait
from pathlib import Path
from typing import BinaryIO

from cdcd.cli.output import say
from cdcd.cli.slot_creation import BlockerReport
from cdcd.config import Config
from cdcd.errors import EXIT_OK, CaptureError
from cdcd.lsn import format_lsn
from cdcd.source.capture import Capture, server_of
from cdcd.source.capture_file import CaptureHeader, create, write_frame, write_header
from cdcd.source.copyboth import XLOG_DATA
from cdcd.source.identity import ServerIdentity
from cdcd.source.settings import SourceSettings, StreamOptions, granted_options

_LOOK_AGAIN_S = 0.2


def run(config: Config, path: Path, *, seconds: float | None, messages: int | None) -> int:
    """Capture into a new file until a signal or a limit. Raises cdcd's errors."""
    settings = config.source_settings()
    server = server_of(settings)
    options = granted_options(server.version_num, config.wanted_options(server.version_num))
    try:
        with create(path) as file:
            try:
                stop = _Stop()
                with _begun(settings, options, stop) as capture:
                    header = _header(server, options, settings.publications, format_lsn(capture.start_lsn))
                    write_header(file, header)
                    _say(f"capturing from {header.start_lsn} into {path}; Ctrl-C ends")
                    written = _write(capture, file, stop, seconds, messages)
            except BaseException:
                if file.tell() == 0:
                    path.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise CaptureError(
            f"{path} cannot be written: {error.strerror}",
            hint="`cdcd decode` reads it up to its last complete frame",
        ) from None
    _say(f"{written} messages")
    return EXIT_OK


class _Stop:
    """A flag that SIGINT and SIGTERM set."""

    def __init__(self) -> None:
        self.is_asked = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)

    def _ask(self, _number: int, _frame: object) -> None:
        self.is_asked = True


def _begun(settings: SourceSettings, options: StreamOptions, stop: _Stop) -> Capture:
    """Start in a thread: while the slot's creation waits for open transactions (F38), libpq blocks signals."""
    capture: Future[Capture] = Future()

    def begin() -> None:
        try:
            capture.set_result(Capture(settings, options, BlockerReport()))
        except BaseException as error:  # noqa: BLE001 - passed to the waiting thread
            capture.set_exception(error)

    threading.Thread(target=begin, daemon=True).start()
    while wait([capture], _LOOK_AGAIN_S).not_done:
        if stop.is_asked:
            raise CaptureError(
                "interrupted before the capture started",
                hint="end the open transactions, and run the command again",
            )
    return capture.result()


def _write(capture: Capture, file: BinaryIO, stop: _Stop, seconds: float | None, messages: int | None) -> int:
    end_s = None if seconds is None else time.monotonic() + seconds
    written = 0

    def until() -> bool:
        is_over = end_s is not None and time.monotonic() >= end_s
        return stop.is_asked or is_over or (messages is not None and written >= messages)

    for payload in capture.frames(until):
        if payload is None:
            file.flush()  # so that the file can be read while it grows
            continue
        write_frame(file, payload)
        written += payload[0] == XLOG_DATA
    return written


def _header(
    server: ServerIdentity, options: StreamOptions, publications: tuple[str, ...], start_lsn: str
) -> CaptureHeader:
    return CaptureHeader(
        server_version_num=server.version_num,
        system_identifier=server.system_identifier,
        timeline=server.timeline,
        database=server.database,
        start_lsn=start_lsn,
        publication_names=publications,
        proto_version=options.protocol_version,
        streaming=options.streaming,
        binary=options.binary,
        messages=options.messages,
        origin=options.origin,
        two_phase=options.two_phase,
    )


def _say(text: str) -> None:
    say([f"cdcd: {text}"], sys.stderr)
