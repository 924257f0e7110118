"""librdkafka's log lines as records of Python's logging.

In: a line of a client: its facility, the client's name, the text.  Out: a record of the logger `cdcd.spark.kafka`;
repetitions within a minute are counted, and the count is logged with the next one.
Invariant: no secret that was read is in a line. An error that the client retries by itself is a warning: it may
occur twenty times a second, and a failed call raises its own error.
Must not: decide anything.
"""

from __future__ import annotations

import logging
import re
import threading
import time

from cdcd.redaction import clean

LOG = logging.getLogger("cdcd.spark.kafka")
WINDOW_S = 60.0
MOST_CHARACTERS = 500
MOST_REMEMBERED = 256
_TRIED_AGAIN = frozenset({"FAIL", "ERROR"})
_THREAD = re.compile(r"^\[thrd:[^\]]*\]: ")
_HOW_LONG = re.compile(r" \(after \d+ms in state \w+(?:, \d+ identical error\(s\) suppressed)?\)$")


class ClientLog:
    """The logger of librdkafka's clients, one for all clients of the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._said: dict[tuple[str, str], tuple[float, int]] = {}

    def log(self, level: int, _form: str, facility: str, _client: str, text: str) -> None:
        """Log one line, with the arguments that confluent-kafka passes."""
        level = min(level, logging.WARNING) if facility in _TRIED_AGAIN else level
        text = clean(_HOW_LONG.sub("", _THREAD.sub("", text, count=1)), MOST_CHARACTERS)
        repeated = self._repeated((facility, text))
        if repeated is not None:
            more = f" (repeated {repeated} times before)" if repeated else ""
            LOG.log(level, "%s: %s%s", facility, text, more)

    def _repeated(self, key: tuple[str, str]) -> int | None:
        """Return the number of repetitions since the line was last logged, None if that was within a minute."""
        now_s = time.monotonic()
        with self._lock:
            logged_s, count = self._said.get(key, (-WINDOW_S, 0))
            if now_s - logged_s < WINDOW_S:
                self._said[key] = logged_s, count + 1
                return None
            if len(self._said) >= MOST_REMEMBERED:
                self._said.clear()
            self._said[key] = now_s, 0
            return count


CLIENT_LOG = ClientLog()
