"""Whether a request of a producer may still be on its way when its transaction has ended (F77).

In: what the producer's client logs of its transactions.  Out: why one may be, None where each was answered.
Kafka's first transaction protocol, the only one that librdkafka has, tells a transaction by its producer's epoch
alone: an EndTxn that comes late ends whatever transaction is open then. A request whose answer does not come is sent
again by the client, which reports a success when the second one is answered. That it did so is told in its log alone,
under `debug=eos`: a line for each outcome of an EndTxn, and one when it loses the coordinator.
Invariant: a transaction is above doubt only where exactly one outcome was told, and a good one. A client that tells
nothing, or in other words, is never taken for one that has nothing to tell.
Must not: decide what is done about it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping

__all__ = ["Attempts", "transaction_log"]

_END = re.compile(r"EndTxn returned (\w+) in state ")
_ANSWERED = "NO_ERROR"
_LOST = {"COORD": "coordinator is now down", "TXNCOORD": "coordinator changed"}
"""By facility, what is said of a coordinator whose connection or place is lost."""
_CONTEXT = "eos"
_LOG_LEVEL, _DEBUG = "log_level", "debug"
_SYSLOG_LEVELS = (50, 50, 50, 40, 30, 20, 20, 10)
"""Python's for each of syslog's, as librdkafka's Python binding translates them."""

Log = Callable[[int, str, str, str, str], None]


def transaction_log(properties: Mapping[str, object]) -> dict[str, object]:
    """Return a transactional producer's properties with those by which it tells what `Attempts` has to hear."""
    debug = str(properties.get(_DEBUG, ""))
    return {**properties, _DEBUG: f"{debug},{_CONTEXT}" if debug else _CONTEXT}


class Attempts:
    """What a producer takes for a logger: what is not meant for it goes on to `log`."""

    def __init__(self, log: Log, properties: Mapping[str, object]) -> None:
        """`properties` are the user's: which lines he wants to have."""
        self._log = log
        level = str(properties.get(_LOG_LEVEL, "6"))
        least = _SYSLOG_LEVELS[min(int(level), 7)] if level.isdecimal() else logging.INFO
        # librdkafka raises its own level to the highest for the sake of the lines that are read here.
        self._least = logging.DEBUG if _DEBUG in properties else least
        self._ends: list[str] = []
        self._lost = ""

    def log(self, level: int, form: str, facility: str, client: str, text: str) -> None:
        """Take one line, as the binding gives it."""
        if level <= logging.DEBUG:
            if facility == "ENDTXN":
                found = _END.search(text)
                self._ends.append(text if found is None else found[1])
            elif facility in _LOST and _LOST[facility] in text:
                self._lost = f"the transaction {_LOST[facility]}"
        if level >= self._least:
            self._log(level, form, facility, client, text)

    def begun(self) -> None:
        """A transaction begins: nothing of the one before it is on its way."""
        self._ends.clear()
        self._lost = ""

    def doubt(self) -> str:
        """Return why a request of the transaction that has ended may still arrive; empty where none can."""
        if self._ends == [_ANSWERED]:
            return self._lost
        if not self._ends:
            return "Kafka's client does not say how the transaction ended"
        return f"EndTxn was sent {len(self._ends)} times: {', '.join(self._ends)}"
