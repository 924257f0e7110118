"""Decide the positions of a status update, and when the next one is due. Pure: times are arguments.

In: LSNs received and confirmed, the clock in microseconds.  Out: `Positions`, and whether to send now.
Invariant: flush and apply begin at the start LSN, and only `advance_flush_lsn` advances them (F7, F71).
Must not: read the clock or the socket.
"""

from __future__ import annotations

from dataclasses import dataclass

from cdcd.lsn import INVALID_LSN, Lsn


@dataclass(frozen=True, slots=True)
class Positions:
    """The three LSNs of a Standby status update; all are complete 64-bit LSNs (F8)."""

    write_lsn: Lsn
    flush_lsn: Lsn
    apply_lsn: Lsn


class Feedback:
    """The positions of one stream and the timing of its status updates."""

    def __init__(self, interval_us: int, start_lsn: Lsn = INVALID_LSN) -> None:
        self._interval_us = interval_us
        self._received_lsn = start_lsn
        self._confirmed_lsn = start_lsn
        self._sent_us: int | None = None
        self._urgent = False

    @property
    def confirmed_lsn(self) -> Lsn:
        """The highest LSN confirmed so far."""
        return self._confirmed_lsn

    def received(self, lsn: Lsn) -> None:
        """Note a received LSN. Message LSNs are not monotone (F5): only the highest counts."""
        self._received_lsn = max(self._received_lsn, lsn)

    def advance_flush_lsn(self, lsn: Lsn) -> bool:
        """Advance flush and apply to `lsn` for the next status update; return whether they advanced (F7)."""
        if lsn <= self._confirmed_lsn:
            return False
        self._confirmed_lsn = lsn
        self.received(lsn)
        return True

    def hurry(self) -> None:
        """Make the next update due at once: the server requested a reply (F14)."""
        self._urgent = True

    def is_due(self, now_us: int) -> bool:
        """Return whether a status update has to be sent now."""
        return self.wait_us(now_us) == 0

    def wait_us(self, now_us: int) -> int:
        """Return the microseconds until the next status update is due, 0 if it is due now."""
        if self._urgent or self._sent_us is None:
            return 0
        return max(0, self._sent_us + self._interval_us - now_us)

    def sent(self, now_us: int) -> None:
        """Note that an update was sent."""
        self._sent_us = now_us
        self._urgent = False

    def positions(self) -> Positions:
        """Return the positions for the server: write may be ahead of flush, apply equals flush (F8)."""
        return Positions(self._received_lsn, self._confirmed_lsn, self._confirmed_lsn)
