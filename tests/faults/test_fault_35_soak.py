"""Fault 35: random faults for a long time, and no resource grows. One minute of faults, and tests of the judge."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.soak import soak
from tests.faults.watched import INTERVAL_S, MIB, Held, grown, held_by

LEAKING = """
import sys, threading
print("ready", flush=True)
sys.stdin.readline()
kept = [open("/dev/null") for _ in range(20)] + [bytearray(b"x") * (30 << 20)]
for _ in range(10):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
print("done", flush=True)
sys.stdin.readline()
"""


def samples(grows: dict[str, float]) -> list[Held]:
    """Return one sample a second for 200 seconds; the given resources grow by these amounts in each second."""
    return [
        Held(
            float(second),
            100 * MIB + int(grows.get("memory", 0) * second),
            40 + int(grows.get("descriptors", 0) * second),
            20 + int(grows.get("threads", 0) * second),
            int(grows.get("files", 0) * second),
        )
        for second in range(200)
    ]


def minutes_of(memory_mib: Callable[[float], float], minutes: float = 10) -> list[Held]:
    """Return samples, in the interval of `Watch`, of a process whose memory is a function of the minute."""
    dice = random.Random(35)
    times = [number * INTERVAL_S for number in range(int(minutes * 60 / INTERVAL_S) + 1)]
    return [
        Held(at_s, int((memory_mib(at_s / 60) + dice.uniform(-0.5, 0.5)) * MIB), 40, 20, 1) for at_s in times
    ]


@pytest.mark.parametrize(
    ("grows", "names"),
    [
        ({}, []),
        ({"memory": 0.05 * MIB, "descriptors": 0.05, "threads": 0.05, "files": 0.05}, []),
        ({"memory": 0.5 * MIB}, ["RSS MiB"]),
        ({"descriptors": 0.2}, ["descriptors"]),
        ({"threads": 0.2}, ["threads"]),
        ({"files": 0.2}, ["spill files"]),
    ],
    ids=lambda value: "-".join(value) or "nothing",
)
def test_what_grows_is_named(grows: dict[str, float], names: list[str]) -> None:
    assert [sentence.split(" grew")[0] for sentence in grown(samples(grows))] == names


def test_what_only_warms_up_has_not_grown() -> None:
    """Growth in the first quarter and a single peak are no leak."""
    flat = samples({})
    warm = [Held(one.at_s, 20 * MIB, 5, 2, 0) for one in flat[:45]]
    peak = [Held(one.at_s, 900 * MIB, 500, 200, 50) for one in flat[180:185]]
    assert grown([*warm, *flat[45:180], *peak, *flat[185:]]) == []


@pytest.mark.parametrize("minutes", [8, 10, 60])
@pytest.mark.parametrize("a_minute", [1.5, 2.5])
def test_a_leak_of_some_megabytes_a_minute_is_found(a_minute: float, minutes: float) -> None:
    """The quarters alone would miss this in ten minutes: a leak of every schema version was 2.5 MiB a minute."""
    found = grown(minutes_of(lambda minute: 97 + a_minute * minute, minutes))
    assert found[-1].startswith("RSS MiB grew by")


def test_a_leak_that_pauses_is_found() -> None:
    """The memory does not grow for a third of each minute, as while a block is judged."""
    found = grown(minutes_of(lambda minute: 97 + 2.5 * (int(minute) + min(1.0, 1.5 * (minute % 1)))))
    assert len(found) == 1
    assert found[0].startswith("RSS MiB grew by")


def test_what_it_keeps_of_larger_and_larger_transactions_is_no_leak() -> None:
    """Each larger transaction makes a step, and the steps become rarer."""
    steps = {0.5: 6.0, 1: 4.0, 2: 3.0, 4: 2.5, 5.7: 3.0, 9: 4.0}
    samples = minutes_of(lambda minute: 97 + sum(mib for at, mib in steps.items() if minute >= at))
    assert grown(samples) == []


def test_what_warms_up_ever_more_slowly_is_no_leak() -> None:
    """As measured without a leak; one minute alone is too short to distinguish this from a leak."""
    for minutes in (1, 10, 60):
        assert grown(minutes_of(lambda minute: 106 + 14 * (1 - math.exp(-minute / 2)), minutes)) == []


def test_a_sample_is_what_the_process_really_holds(tmp_path: Path) -> None:
    (tmp_path / "of_a_session").mkdir()
    (tmp_path / "of_a_session" / "1.spill").touch()
    process = subprocess.Popen(
        [sys.executable, "-c", LEAKING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        # Before this line the interpreter still opens and closes files.
        assert process.stdout.readline() == "ready\n"
        before = held_by(process.pid, tmp_path)
        process.stdin.write("leak\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n"
        after = held_by(process.pid, tmp_path)
        process.kill()
    assert before is not None
    assert after is not None
    assert after.descriptors == before.descriptors + 20
    assert after.threads == before.threads + 10
    assert after.memory_bytes >= before.memory_bytes + 25 * MIB
    assert after.spill_files == 1
    assert held_by(process.pid, tmp_path) is None


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_minute_of_faults_finds_nothing_and_nothing_grows() -> None:
    assert soak(1, 1) == 0
