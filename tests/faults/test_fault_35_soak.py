"""Fault 35: random faults for long, and nothing grows. Here a minute of it, and the judge of the growth itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.soak import soak
from tests.faults.watched import MIB, Held, grown, held_by

LEAKING = """
import sys, threading
sys.stdin.readline()
kept = [open("/dev/null") for _ in range(20)] + [bytearray(b"x") * (30 << 20)]
for _ in range(10):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
print("done", flush=True)
sys.stdin.readline()
"""


def samples(grows: dict[str, float]) -> list[Held]:
    """Two hundred seconds, a sample each; what is named grows by so much in each of them."""
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
    """The first quarter does not count, nor does a peak."""
    flat = samples({})
    warm = [Held(one.at_s, 20 * MIB, 5, 2, 0) for one in flat[:45]]
    peak = [Held(one.at_s, 900 * MIB, 500, 200, 50) for one in flat[180:185]]
    assert grown([*warm, *flat[45:180], *peak, *flat[185:]]) == []


def test_a_sample_is_what_the_process_really_holds(tmp_path: Path) -> None:
    (tmp_path / "of_a_session").mkdir()
    (tmp_path / "of_a_session" / "1.spill").touch()
    process = subprocess.Popen(
        [sys.executable, "-c", LEAKING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        before = held_by(process.pid, tmp_path)
        process.stdin.write("leak\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n"
        after = held_by(process.pid, tmp_path)
        process.kill()
    assert before is not None
    assert after is not None
    assert after.descriptors >= before.descriptors + 20
    assert after.threads == before.threads + 10
    assert after.memory_bytes >= before.memory_bytes + 25 * MIB
    assert after.spill_files == 1
    assert held_by(process.pid, tmp_path) is None


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_minute_of_it() -> None:
    assert soak(1, 1) == 0
