"""The demo as a user runs it: small, with its kill, read by an independent consumer, and interrupted."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from cdcd.demo.plan import BULK_CHANGES
from tests.support.nightly import nightly
from tests.support.reader import Reader, assert_each_once, assert_tombstones_follow_deletes
from tests.support.small_demo import BULK_CHANGES as SMALL_CHANGES
from tests.support.waiting import eventually

DEMO = [sys.executable, "-m", "cdcd", "demo"]
SMALL = [sys.executable, "-m", "tests.support.small_demo"]
DEADLINE_S = 480
"""Longer than the demo waits without progress in one phase: it then fails by itself, and says where."""


def processes_in(folder: Path) -> list[str]:
    """Return the ids of the processes whose working directory is in a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            place = os.readlink(entry / "cwd") if entry.name.isdigit() else ""
        except OSError:
            continue
        if place.startswith(str(folder)):
            found.append(entry.name)
    return found


@pytest.mark.timeout(2 * DEADLINE_S)
@pytest.mark.parametrize(
    ("way", "demo", "changes"),
    [
        ("--seconds=5", SMALL, SMALL_CHANGES),
        nightly("--seconds=10", DEMO, BULK_CHANGES),
        nightly("--format=delta", SMALL, SMALL_CHANGES),
        nightly("--format=iceberg", SMALL, SMALL_CHANGES),
        nightly("--scd=2", SMALL, SMALL_CHANGES),
        nightly("--s3", SMALL, SMALL_CHANGES),
        pytest.param("--no-registry", DEMO, BULK_CHANGES, marks=pytest.mark.long),
    ],
    ids=["small", "large", "delta", "iceberg", "history", "bucket", "no registry"],
)
def test_the_mirror_equals_the_source_and_a_stranger_reads_each_change_once(
    way: str, demo: list[str], changes: int
) -> None:
    """cdcd is killed once; the demo is kept with --keep, read with Confluent's own deserializer, and stopped.

    `changes`: of the large transaction, nine in ten of which are inserts.
    """
    words = ["--rows", "1500", "--seconds", "10", "--kill-at", "bulk", "--seed", "11", "--keep", way]
    done = subprocess.run([*demo, *words], capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    identities = re.search(r"stop it with  cdcd demo --stop (\S+)", done.stdout)
    assert identities is not None, done.stdout + done.stderr
    try:
        assert done.returncode == 0, done.stdout + done.stderr
        last = done.stdout.splitlines()[-1]
        versions = r", \d+ versions of rows" if way == "--scd=2" else ""
        assert re.fullmatch(rf"mirror == source: 9 tables, \d+ rows{versions}", last)
        assert done.stdout.count("mirror == source") == 1
        assert "cdcd was killed" in done.stdout
        assert ("s3://lake/shop" in done.stdout) is (way == "--s3")
        assert ("starting the schema registry" in done.stdout) is (way != "--no-registry")
        read_by_a_stranger(done.stdout, changes * 9 // 10)
    finally:
        stopped = subprocess.run(
            [*DEMO, "--stop", identities[1]], capture_output=True, text=True, timeout=90, check=False
        )
    assert stopped.returncode == 0
    assert not Path(identities[1]).exists()
    assert not processes_in(Path(identities[1]))


@pytest.mark.long
@pytest.mark.timeout(2 * DEADLINE_S)
def test_the_mirror_equals_the_source_under_chaos() -> None:
    """Every process is killed and frozen repeatedly."""
    words = ["--rows", "1500", "--seconds", "30", "--chaos"]
    done = subprocess.run([*DEMO, *words], capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "in addition to the one kill: cdcd was" in done.stdout
    assert re.fullmatch(r"mirror == source: 9 tables, \d+ rows", done.stdout.splitlines()[-1])


def read_by_a_stranger(output: str, inserts: int) -> None:
    """Check that each (timeline, commit_lsn, tx_seq) is there once and in order, across all kills."""
    broker, registry = (re.search(rf"{name} +(\S+)", output)[1] for name in ("Kafka  ", "registry  "))  # type: ignore[index]
    reader = Reader(broker, registry, beyond_python=["shop.public.type_zoo"])
    topics = reader.topics("shop")
    assert len(topics) == 10
    events = reader.read(*topics)
    assert_each_once(events)
    assert_tombstones_follow_deletes(events)
    ops = Counter((event.topic.removeprefix("shop.public."), event.op) for event in events)
    assert ops["events", "c"] >= inserts
    assert ops["products", "u"] > 0
    assert ops["shop.message", "m"] > 0
    assert all(ops[table, "r"] > 0 for table in ("customers", "audit_log", "type_zoo"))


@pytest.mark.parametrize(
    ("line", "number"),
    [nightly("starting the schema registry", signal.SIGINT), nightly("rows change", signal.SIGTERM)],
)
def test_an_interrupt_stops_everything_that_was_started(
    line: str, number: signal.Signals, stack_folder: Path
) -> None:
    """In the folder of the session's servers: the server's account cannot access pytest's own folders."""
    folder = stack_folder / f"interrupted-{number}"
    folder.mkdir(mode=0o711)
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"}
    demo = subprocess.Popen(
        [*DEMO, "--rows", "1000", "--seconds", "20"], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert demo.stdout is not None
    assert any(line in output for output in demo.stdout), "the demo ended early"
    eventually(lambda: processes_in(folder), "an announced server runs")
    demo.send_signal(number)
    assert demo.wait(60) == 130
    demo.stdout.close()
    assert processes_in(folder) == []
    assert list(folder.glob("cdcd-demo-*")) == []


@pytest.mark.parametrize(
    "words", [["--rows", "5"], nightly(["--seconds", "5", "--kill-at", "9"]), nightly(["--speed", "9"])]
)
def test_wrong_words_end_at_once(words: list[str]) -> None:
    done = subprocess.run([*DEMO, *words], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert "error:" in done.stderr


def test_stop_of_a_folder_that_is_no_demo(tmp_path: Path) -> None:
    done = subprocess.run(
        [*DEMO, "--stop", str(tmp_path)], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert tmp_path.exists()
