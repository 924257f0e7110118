"""Logs: one line per event, as JSON or for a terminal, on stderr, UTC times, secrets removed.

In: structlog events of cdcd and records of the logging module (librdkafka, aiohttp).  Out: lines.
Invariant: an event is one line, whatever its text contains; a value that looks like a password, by its key or inside
a DSN or URL, is never written, not even inside a traceback.
Must not: receive row values, because this module cannot distinguish them from other text.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping
from typing import Any, Literal, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from cdcd.errors.commands import typeable
from cdcd.ops.log_dedup import flush_counts
from cdcd.ops.log_thread import ThreadedHandler
from cdcd.redaction import MAX_CHARACTERS, STRUCK_OUT, clean, strike

__all__ = ["complete_hint", "configure", "flush", "redact"]

Format = Literal["json", "console"]

_SECRET_KEY = re.compile(
    r"pass(word|wd|phrase)?$|pgpass|secret|token$|credential|authorization|api[._-]?key|private[._-]?key"
    r"|auth\.user\.info|ssl\.key\.(pem|password)|sasl\.password",
    re.IGNORECASE,
)
_SECRET_FILE = re.compile(r"[._-](file|path|location)$", re.IGNORECASE)
_AS_JSON = structlog.processors.JSONRenderer()
_CHATTY = ("httpx", "httpx2", "httpcore", "httpcore2", "asyncio", "aiohttp.access")


def configure(
    level: str = "info", form: Format = "json", stream: TextIO | None = None, *, is_threaded: bool = False
) -> None:
    """Send all log records of this process to `stream` (stderr). Raises ValueError for an unknown level.

    `is_threaded`: for a daemon, which must not block if its log is not read.
    """
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ValueError(f"unknown log level {level!r}")
    target = sys.stderr if stream is None else stream
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    render: Processor = _json if form == "json" else _console
    formatter = _Formatter(
        foreign_pre_chain=[*shared, structlog.stdlib.PositionalArgumentsFormatter()],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            complete_hint,
            redact,
            render,
        ],
    )
    handler = ThreadedHandler(target) if is_threaded else logging.StreamHandler(target)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(number)
    for chatty in _CHATTY:  # these libraries log a line per request
        logging.getLogger(chatty).setLevel(max(number, logging.WARNING))
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


class _Formatter(structlog.stdlib.ProcessorFormatter):
    """A formatter that replaces a failed record by a line with its logger: logging would print the whole record."""

    def format(self, record: logging.LogRecord) -> str:
        try:
            return super().format(record)
        except Exception as error:  # noqa: BLE001 - a record that cannot be formatted must not end the daemon
            problem = f"log_line_failed: {record.name}: {type(error).__name__}"
            return super().format(logging.LogRecord("cdcd.log", logging.ERROR, "", 0, problem, (), None))


def flush() -> None:
    """Log the open counts, and wait briefly for the lines in the queue, before the process ends."""
    flush_counts()
    for handler in logging.getLogger().handlers:
        handler.flush()


def complete_hint(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
    """Structlog processor: the commands of the hint name the configuration file, so that they can be typed."""
    hint = event.get("hint")
    return {**event, "hint": typeable(hint)} if isinstance(hint, str) else event


def redact(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
    """Structlog processor: remove secrets, by key and by form, at every depth."""
    return {key: _struck(key, value) for key, value in event.items()}


def _struck(key: object, value: Any) -> Any:
    if isinstance(key, str) and _SECRET_KEY.search(key) and not _SECRET_FILE.search(key):
        return STRUCK_OUT
    if isinstance(value, str):
        return strike(value)
    if isinstance(value, BaseException):
        return strike(f"{type(value).__name__}: {value}")
    if isinstance(value, Mapping):
        return {_key(inner): _struck(inner, item) for inner, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_struck("", item) for item in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return strike(str(value))


def _key(key: object) -> str:
    """Return a mapping's key as text for JSON, without secrets: text of a server may be a key, too."""
    return strike(str(key))


def _json(logger: WrappedLogger, name: str, event: EventDict) -> str | bytes:
    # DEL is the only control character that JSON in ASCII does not escape.
    line = _AS_JSON(logger, name, event)
    return line.replace("\x7f", "\\u007f") if isinstance(line, str) else line


def _console(logger: WrappedLogger, name: str, event: EventDict) -> str:
    """Render for people: time, level, event, then key=value; line breaks are written as `\\n`."""
    stamp = event.pop("timestamp", "")
    level = str(event.pop("level", "")).upper()
    text = event.pop("event", "")
    source = event.pop("logger", None)
    pairs = " ".join(f"{key}={value}" for key, value in event.items())
    where = f" ({source})" if source else ""
    return clean(f"{stamp} {level:<8} {text}{' ' if pairs else ''}{pairs}{where}", 2 * MAX_CHARACTERS)
