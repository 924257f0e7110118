"""Random faults in blocks, each of which is judged: shared by `make faults` and its test.

In: a scene.  Out: findings; the faults that struck, counted by name.
Invariant: a round is a fault that has struck; a daemon that halts or exits by itself is a finding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.faults.facts import Finding
from tests.faults.strikes import Scene, strike
from tests.faults.workload import EVERYTHING
from tests.faults.world import World

KINDS_OF_LOAD = EVERYTHING | {"small": 80, "big": 1, "copied": 1}
BIG_ROWS = 200
"""Larger than logical_decoding_work_mem, so that the transaction is streamed."""
PAUSE_S = 0.03
KINDS = {
    "lost": "a", "invented": "b", "repeated": "c", "reordered": "d", "torn": "e", "fold": "f", "altered": "g",
    "schema": "h", "confirmed early": "i", "snapshot": "j", "not caught up": "k",
}  # fmt: skip
"""Names of the oracle's assertions in the last line."""


def begin(scene: Scene, seed: int) -> None:
    """Take a snapshot, then start load that does not end."""
    world = scene.world
    world.fill(str(seed))
    world.daemon.start().wait_state("streaming")
    world.write(str(seed), 2, kinds=KINDS_OF_LOAD, big_rows=BIG_ROWS, pause_s=PAUSE_S)


def one_block(scene: Scene, struck: Counter[str], count: int) -> list[Finding]:
    """Inject `count` faults, counted in `struck`, and judge the block; a failed assertion is a finding as well."""
    world = scene.world
    try:
        for _ in range(count):
            struck[strike(scene)] += 1
        scene.heal()
        findings = world.judge()
        if reason := world.halted():
            findings.append(Finding("k", f"cdcd has halted: {reason}"))
        world.go_on()
    except AssertionError as error:
        return [Finding("k", str(error))]
    return findings


def summary(world: World, struck: Counter[str], findings: Sequence[Finding], took_s: float, seed: int) -> str:
    """Return the last lines: the faults, the transactions and records, the findings."""
    letters = Counter(one.assertion for one in findings)
    repeated = f" ({world.oracle.repetitions} of them repeated)" if world.oracle.repetitions else ""
    return (
        f"struck: {', '.join(f'{name} {times}' for name, times in struck.most_common())}\n"
        f"{struck.total()} rounds in {took_s:.0f} s, {world.transactions} transactions, {world.changes} changes,"
        f" {world.records} records{repeated}, {world.sampler.count} samples:"
        f" {', '.join(f'{name} {letters[letter]}' for name, letter in KINDS.items())}; seed {seed}"
    )
