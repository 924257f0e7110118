"""What a seed decides: the daemon's options, the load, and the faults with their times. Pure.

In: a seed, the seconds of load.  Out: a `Plan`.
Invariant: the same seed gives the same plan. When a fault strikes is planned; whether it had an effect is observed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from tests.campaign.workload import WEIGHTS

FAULTS = {
    "broker_killed": 3, "coordinator_killed": 3, "broker_restarted": 2, "broker_paused": 5, "coordinator_paused": 4,
    "broker_partitioned": 6, "broker_half_partitioned": 5, "broker_cut_off_from_cdcd": 6,
    "requests_delayed": 6, "connections_cut": 6, "connection_cut_amid": 5, "request_late": 12,
    "postgres_killed": 2, "postgres_restarted": 1, "walsender_killed": 1, "walsender_paused": 5, "walsender_ended": 4,
    "stream_delayed": 4, "stream_lost": 4, "cdcd_killed": 10, "cdcd_paused": 6, "cdcd_stopped": 3,
    "clock_skewed": 6, "registry_paused": 2,
}  # fmt: skip
"""Each fault and how often it is chosen. `nemesis` has a function of each name."""
A_STRIKE_PER_S = 1.0
LONGEST_S = 7.0


@dataclass(frozen=True, slots=True)
class Strike:
    """One fault: it begins at a time of the load, and is over after a while; `seed`: for its own choices."""

    fault: str
    at_s: float
    lasts_s: float
    seed: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What one seed does. `options`: of the daemon, as in its configuration file."""

    seed: int
    load_s: float
    options: dict[str, Any]
    sessions: int
    pause_s: float
    weights: dict[str, int]
    strikes: tuple[Strike, ...]
    is_in_copy: bool
    """Whether the faults begin with the daemon's start, so that they strike in the copy of the tables, too."""

    @property
    def named_options(self) -> str:
        """The options in short, for a line of the report."""
        sink, protocol = self.options["sink"], self.options["source"]["protocol"]
        return (
            f"streaming {protocol['streaming']}{', binary' if protocol['binary'] else ''},"
            f" {sink['topics']['partitions']} partitions, {sink['commit']['max_rows']} rows a commit,"
            f" wait {sink['commit']['max_wait_ms']} ms{', faults from the start on' if self.is_in_copy else ''}"
        )


def plan_of(seed: int, load_s: float) -> Plan:
    """Return the plan of a seed."""
    dice = random.Random(seed)
    count = max(1, round(load_s * A_STRIKE_PER_S * dice.uniform(0.5, 1.5)))
    # A seed has some kinds of faults only: those of one kind in close succession find other things than all kinds.
    kinds = dice.sample(list(FAULTS), dice.choice((6, 10, 16, len(FAULTS))))
    strikes = [
        Strike(
            fault,
            dice.uniform(0, load_s),
            min(LONGEST_S, dice.expovariate(0.5) + 0.05),
            dice.randrange(1 << 30),
        )
        for fault in dice.choices(kinds, [FAULTS[kind] for kind in kinds], k=count)
    ]
    return Plan(
        seed,
        load_s,
        options_of(dice),
        sessions=dice.randrange(2, 5),
        pause_s=dice.choice((0.0, 0.01, 0.03)),
        weights={kind: weight * dice.choice((0, 1, 1, 3)) + 1 for kind, weight in WEIGHTS.items()},
        strikes=tuple(sorted(strikes, key=lambda strike: strike.at_s)),
        is_in_copy=dice.random() < 0.2,
    )


def options_of(dice: random.Random) -> dict[str, Any]:
    """Return options of the daemon."""
    commit = {
        "max_rows": dice.choice((1, 20, 500, 30_000)),
        "max_bytes": dice.choice(("64KiB", "16MiB")),
        "max_wait_ms": dice.choice((0, 0, 20, 200)),
    }
    return {
        "sink": {
            "delivery": "exactly_once",
            "topics": {"partitions": dice.choice((1, 2, 4)), "replication_factor": 3},
            "commit": commit,
        },
        "source": {
            "protocol": {
                "streaming": dice.choice(("off", "on", "parallel")),
                "binary": dice.random() < 0.3,
            }
        },
        "buffer": {"memory": dice.choice(("1MiB", "32MiB"))},
    }
