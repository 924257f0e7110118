"""The demo as a person runs it: small, with its kill, read by a consumer of its own, and interrupted."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cdcd.demo.verify import check_topics

DEMO = [sys.executable, "-m", "cdcd", "demo"]
DEADLINE_S = 240


def processes_in(folder: Path) -> list[str]:
    """Ids of the processes whose working directory is in a folder."""
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
def test_the_mirror_equals_the_source_and_a_stranger_reads_each_change_once() -> None:
    """Everything is killed once, kept at the end, read with Confluent's own deserializer, and stopped."""
    words = ["--rows", "1500", "--seconds", "10", "--kill-at", "bulk", "--seed", "11", "--keep"]
    done = subprocess.run([*DEMO, *words], capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    kept = re.search(r"stop it with  cdcd demo --stop (\S+)", done.stdout)
    assert kept is not None, done.stdout + done.stderr
    try:
        assert done.returncode == 0, done.stdout + done.stderr
        last = done.stdout.splitlines()[-1]
        assert re.fullmatch(r"mirror == source: 9 tables, \d+ rows", last)
        assert done.stdout.count("mirror == source") == 1
        assert "cdcd was killed" in done.stdout
        read_by_a_stranger(done.stdout, int(last.split()[-2]))
    finally:
        stopped = subprocess.run(
            [*DEMO, "--stop", kept[1]], capture_output=True, text=True, timeout=90, check=False
        )
    assert stopped.returncode == 0
    assert not Path(kept[1]).exists()
    assert not processes_in(Path(kept[1]))


def read_by_a_stranger(output: str, rows: int) -> None:
    """Each (commit_lsn, tx_seq) is there once, in order, and what is left adds up to the source's rows."""
    broker, registry = (re.search(rf"{name} +(\S+)", output)[1] for name in ("Kafka  ", "registry  "))  # type: ignore[index]
    checks = check_topics(broker, registry, "shop", beyond_python=("shop.public.type_zoo",))
    assert [problem for check in checks.values() for problem in check.problems] == []
    assert sum(check.alive for check in checks.values()) == rows
    assert checks["shop.public.events"].by_op["c"] >= 90_000
    assert checks["shop.public.products"].by_op["u"] > 0
    assert all(checks[f"shop.public.{table}"].by_op["r"] > 0 for table in ("customers", "audit_log"))


@pytest.mark.parametrize(
    ("line", "number"),
    [("starting the schema registry", signal.SIGINT), ("rows change", signal.SIGTERM)],
)
def test_an_interrupt_stops_everything_that_was_started(
    line: str, number: signal.Signals, tmp_path: Path
) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and folder != Path("/") and not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)  # the server's account has to get through
    demo = subprocess.Popen(
        [*DEMO, "--rows", "1000", "--seconds", "20"], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert demo.stdout is not None
    for said in demo.stdout:
        if line in said:
            break
    time.sleep(0.3)  # somewhere inside what was announced
    assert processes_in(tmp_path)
    demo.send_signal(number)
    assert demo.wait(60) == 130
    demo.stdout.close()
    assert processes_in(tmp_path) == []
    assert list(tmp_path.glob("cdcd-demo-*")) == []


@pytest.mark.parametrize("words", [["--rows", "5"], ["--seconds", "5", "--kill-at", "9"], ["--speed", "9"]])
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
