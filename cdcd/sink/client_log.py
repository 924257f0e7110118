"""The log lines of librdkafka, as events of cdcd's log.

In: a line of a client: its facility, the client's name, the text.  Out: `kafka_client` with broker and reason as
separate fields; repeated lines, also from several clients, are counted.
Invariant: a broker that cannot be reached is a warning: the client reconnects by itself, and an operation that needs
the broker raises its own error. One broker and reason give one line, whichever client reports them.
Must not: decide anything.
"""

from __future__ import annotations

import logging
import re

from cdcd.ops.log_dedup import WINDOW_S, LogDeduplicator
from cdcd.redaction import clean

__all__ = ["CLIENT_LOG", "ClientLog"]

_TRIED_AGAIN = frozenset({"FAIL", "ERROR"})
"""Facilities of errors that the client recovers from by itself; the others are FATAL."""
_THREAD = re.compile(r"^\[thrd:[^\]]*\]: ")
_BROKER = re.compile(
    r"^(?:\w+://)?(?P<broker>[\w.:\[\]-]+:\d+)(?:/(?:bootstrap|-?\d+))?: (?P<reason>.*)$", re.DOTALL
)
_CONNECT = re.compile(r"^Connect to ipv[46]#\S+ failed: ")
_HOW_LONG = re.compile(r" \(after \d+ms in state \w+(?:, \d+ identical error\(s\) suppressed)?\)$")
_NUMBERS = re.compile(r"\d+")
_MOST_CHARACTERS = 500


class ClientLog:
    """A logger for clients of librdkafka."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._deduplicator = LogDeduplicator("cdcd.sink.librdkafka", window_s)

    def log(self, level: int, _form: str, facility: str, client: str, text: str) -> None:
        """Log one line, with the arguments that the binding passes."""
        level = min(level, logging.WARNING) if facility in _TRIED_AGAIN else level
        text = clean(_THREAD.sub("", text, count=1), _MOST_CHARACTERS)
        found = _BROKER.match(text)
        if facility not in _TRIED_AGAIN or found is None:
            key = (facility, _NUMBERS.sub("#", text))
            self._deduplicator.say(
                level, "kafka_client", key=key, facility=facility, client=client, reason=text
            )
            return
        broker, reason = found["broker"], _CONNECT.sub("", _HOW_LONG.sub("", found["reason"]))
        self._deduplicator.say(
            level, "kafka_client", key=(broker, _NUMBERS.sub("#", reason)), broker=broker, reason=reason
        )

    def flush(self) -> None:
        """Log the counts of repeated lines."""
        self._deduplicator.flush()


CLIENT_LOG = ClientLog()
"""One logger for all clients of the process: they connect to the same brokers."""
