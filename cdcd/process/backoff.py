"""How long to wait before the next try: exponential with jitter, pure.

In: the number of tries so far and a random number of [0, 1).  Out: seconds.
Invariant: never less than half and never more than the whole of the current step, never above the cap.
"""

FIRST_S = 0.25
CAP_S = 30.0


def delay_s(tries: int, chance: float) -> float:
    """Return the pause before try number `tries` + 1 (`tries` counts failures in a row, from 1)."""
    step = min(CAP_S, FIRST_S * 2 ** min(tries - 1, 20))
    return float(step * (0.5 + chance / 2))
