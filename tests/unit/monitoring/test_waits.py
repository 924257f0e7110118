"""When a wait is shown, logged and over, by a simulated clock."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from cdcd.errors import (
    CdcdError,
    RegistryUnavailable,
    SinkUnavailable,
    SlotActive,
    SnapshotStale,
    SourceStandby,
    SourceUnavailable,
    SpillFull,
    StandbyUnavailable,
    StandbyUnusable,
    TopicMissing,
)
from cdcd.monitoring.retry_waits import room_below, waits_for
from cdcd.monitoring.status import Status
from cdcd.monitoring.waits import LOGGED_AGAIN_AFTER_S, OTHER_BLOCKERS_AFTER_S, SHOWN_AFTER_S, Waits
from cdcd.ops.metrics import Metrics
from cdcd.waits import Blocker, WaitCause

A, B = Blocker("pid 1", pid=1), Blocker("pid 2", pid=2)


class Clocked:
    """Waits with a simulated clock."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.waits = Waits(lambda: self.now_s)

    def after(self, seconds: float) -> list[dict[str, Any]]:
        """Advance the clock and return the logged events."""
        self.now_s += seconds
        with capture_logs() as lines:
            self.waits.turn()
        return [dict(line) for line in lines]


def test_a_short_wait_is_not_shown() -> None:
    clocked = Clocked()
    with capture_logs() as lines:
        with clocked.waits.on("kafka", "a commit"):
            assert clocked.after(SHOWN_AFTER_S - 0.1) == []
            assert clocked.waits.page() == []
        clocked.after(60)
    assert lines == []
    assert clocked.waits.shown() == []


def test_a_long_one_is_shown_said_once_and_said_when_it_is_over() -> None:
    clocked = Clocked()
    with capture_logs() as lines, clocked.waits.on("registry", "subject s"):
        (line,) = clocked.after(SHOWN_AFTER_S)
        assert (line["event"], line["kind"], line["held_by"]) == ("waiting", "registry", "not known")
        assert clocked.after(10) == []
        (page,) = clocked.waits.page()
        assert (page["kind"], page["seconds"]) == ("registry", SHOWN_AFTER_S + 10)
        assert len(clocked.after(LOGGED_AGAIN_AFTER_S)) == 1
    (ended,) = lines
    assert (ended["event"], ended["kind"]) == ("wait_ended", "registry")
    assert clocked.waits.page() == []


def test_other_blockers_are_said_but_not_by_the_second() -> None:
    clocked = Clocked()
    with clocked.waits.watching("slot_creation", "slot s", is_waiting=True) as report:
        report(WaitCause("slot_creation", blockers=(A,)))
        assert "pid 1" in clocked.after(SHOWN_AFTER_S)[0]["held_by"]
        report(WaitCause("slot_creation", blockers=(B,)))
        assert clocked.after(1) == []
        assert [one.who for one in clocked.waits.shown()[0].blockers] == ["pid 2"]
        assert "pid 2" in clocked.after(OTHER_BLOCKERS_AFTER_S)[0]["held_by"]
        report(None)  # a failed query: no blocker is shown, because it may have ended
        assert clocked.waits.shown()[0].blockers == ()


def test_a_statement_waits_only_while_the_looks_say_so() -> None:
    clocked = Clocked()
    with clocked.waits.watching("lock") as report:
        assert clocked.after(60) == []
        report(WaitCause("lock", "AccessShareLock on public.t", (A,)))
        assert clocked.after(1) == []
        assert len(clocked.after(SHOWN_AFTER_S)) == 1
        with capture_logs() as lines:
            report(None)
        assert [line["event"] for line in lines] == ["wait_ended"]
        assert clocked.waits.shown() == []
        report(WaitCause("lock", "AccessShareLock on public.u", (B,)))
        assert clocked.after(1) == []
        assert len(clocked.after(SHOWN_AFTER_S)) == 1


def test_tries_for_the_same_are_one_wait() -> None:
    clocked = Clocked()
    clocked.waits.retrying("source", "refused")
    clocked.now_s += 100
    clocked.waits.retrying("source", "shutting down")
    (wait,) = clocked.waits.shown()
    assert (wait.since_s, wait.what) == (1000.0, "shutting down")
    clocked.waits.stop_retrying("kafka")
    assert clocked.waits.shown() != []
    clocked.waits.retrying("kafka")
    assert clocked.waits.shown() == []
    clocked.waits.stop_retrying()
    clocked.now_s += 100
    assert clocked.waits.shown() == []


@pytest.mark.parametrize("state", ["streaming", "snapshot", "halted", "stopping"])
def test_a_state_beyond_the_tries_ends_their_wait(state: str) -> None:
    status = Status(Metrics("1", with_process=False), name="shop", slot="slot")
    status.waits.retrying("source")
    assert len(status.waits._entries) == 1
    status.state("backoff", SourceUnavailable("refused"))
    assert len(status.waits._entries) == 1
    status.state(state)
    assert status.waits._entries == []


async def test_a_look_finds_out_who_it_is_and_one_that_fails_shows_nobody() -> None:
    clocked = Clocked()
    answers: list[Any] = [(A,), SinkUnavailable("no answer"), ValueError("a defect")]

    def query() -> tuple[Blocker, ...]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return tuple(answer)

    clocked.waits.blocker_queries["kafka"] = query
    with clocked.waits.on("kafka"):
        for expected in (["pid 1"], [], []):
            clocked.after(SHOWN_AFTER_S + 10)
            (entry,) = clocked.waits._entries
            assert entry.running_query is not None
            await asyncio.wait_for(entry.running_query, 20)
            assert [one.who for one in clocked.waits.shown()[0].blockers] == expected


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (SlotActive("held"), "slot_held"),
        (SourceStandby("standby"), "promotion"),
        (SourceUnavailable("gone"), "source"),
        (StandbyUnavailable("gone"), "snapshot_standby"),
        (StandbyUnusable("an operator's"), None),
        (SinkUnavailable("gone"), "kafka"),
        (RegistryUnavailable("gone"), "registry"),
        (SnapshotStale("begun again"), None),
        (TopicMissing("an operator's"), None),
        (SpillFull("an operator's"), None),
    ],
)
def test_what_is_tried_again_waits_for(error: CdcdError, kind: str | None) -> None:
    assert waits_for(error) == kind


def test_the_metrics_say_how_long_and_who() -> None:
    status = Status(Metrics("1", with_process=False), name="shop", slot="slot")
    samples = status.metrics.snapshot()
    assert samples['cdcd_wait_seconds{kind="lock"}'] == 0
    entry = status.waits.begin("lock")
    entry.since_s, entry.blockers = 0.0, (Blocker("pid 1", "", 1, "d", "u", "a"),)
    samples = status.metrics.snapshot()
    assert samples['cdcd_wait_seconds{kind="lock"}'] > 1e9
    assert samples['cdcd_wait_seconds{kind="kafka"}'] == 0
    (info,) = (name for name in samples if name.startswith("cdcd_wait_blocker_info"))
    assert 'pid="1"' in info
    assert 'database="d"' in info
    status.waits.end(entry)
    assert not [name for name in status.metrics.snapshot() if name.startswith("cdcd_wait_blocker_info")]


def test_a_disk_without_room_is_a_wait_with_its_file_system(tmp_path: Path) -> None:
    status = Status(Metrics("1", with_process=False), name="shop", slot="slot")
    status.waits.blocker_queries["disk"] = lambda: room_below(tmp_path)
    status.waiting_for_disk(True)
    (entry,) = status.waits._entries
    assert entry.kind == "disk"
    assert entry.query is not None
    (blocker,) = entry.query()
    assert blocker.who == f"the file system of {tmp_path}"
    assert f"of {shutil.disk_usage(tmp_path).total} bytes are free" in blocker.doing
    status.waiting_for_disk(False)
    assert status.waits._entries == []
    assert room_below(tmp_path / "gone") == ()
