"""The daemon's reaction to each error. Sessions are scripted: the test chooses how each one ends."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from cdcd.errors import (
    EXIT_FENCED,
    EXIT_OK,
    CdcdError,
    MessageTruncated,
    PublicationMissing,
    ReplicaIdentityIncomplete,
    SinkFenced,
    SlotActive,
    SlotDroppedByWalGuard,
    SlotLost,
    SnapshotStale,
    SourceBehind,
    SourceUnavailable,
    StreamingFailed,
    TopicReplaced,
)
from cdcd.monitoring.publication_monitor import PublicationMonitor
from cdcd.monitoring.status import Status
from cdcd.ops.metrics import Metrics
from cdcd.process import supervisor as supervisor_module
from cdcd.process.supervisor import Supervisor

DEADLINE_S = 20
STREAM = object()
"""An ending: the session runs until it is stopped or made to fail."""


@dataclass(frozen=True)
class Streamed:
    """An ending: the session fails with this error after it opened the stream."""

    error: CdcdError


class Sessions:
    """Replaces the class `Session`: each session ends as the script says; the last ending repeats."""

    def __init__(self, *endings: object) -> None:
        self.endings = list(endings)
        self.started = 0
        self.last_error: list[CdcdError | None] = []
        self.snapshot_due: list[bool] = []

    def __call__(
        self,
        _config: object,
        _state: object,
        stop: asyncio.Event,
        *,
        last_error: CdcdError | None,
        is_snapshot_due: bool,
    ) -> Ending:
        self.last_error.append(last_error)
        self.snapshot_due.append(is_snapshot_due)
        ending = self.endings[min(self.started, len(self.endings) - 1)]
        self.started += 1
        return Ending(ending, stop)


@dataclass(frozen=True)
class Copied:
    """An ending: the session fails with this error after it began to copy."""

    error: CdcdError


@dataclass(frozen=True)
class Durable:
    """An ending: the session fails with this error at this durable position."""

    error: CdcdError
    lsn: int


@dataclass(frozen=True)
class Advanced:
    """An ending: the session fails with this error after it made new records durable."""

    error: CdcdError


@dataclass(frozen=True)
class Closing:
    """An ending: the session already fails with this error when the supervisor makes it fail."""

    error: CdcdError


class Ending:
    has_streamed = has_advanced = has_begun_copy = False
    asked_us = None

    @property
    def has_begun(self) -> bool:
        return self.has_streamed or self.has_begun_copy

    def __init__(self, ending: object, stop: asyncio.Event) -> None:
        self.durable_lsn = ending.lsn if isinstance(ending, Durable) else 0
        self.ending, self.stop = ending, stop
        self.reported: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fail(self, error: CdcdError) -> None:
        self.reported.set_exception(error)

    async def run(self) -> None:
        if isinstance(self.ending, Streamed):
            self.has_streamed = True
            raise self.ending.error
        if isinstance(self.ending, Advanced):
            self.has_advanced = True
            raise self.ending.error
        if isinstance(self.ending, Copied):
            self.has_begun_copy = True
            raise self.ending.error
        if isinstance(self.ending, Durable):
            raise self.ending.error
        if isinstance(self.ending, Exception):
            raise self.ending
        if isinstance(self.ending, Closing):
            await asyncio.wait([self.reported])
            self.reported.exception()
            raise self.ending.error
        stopping = asyncio.ensure_future(self.stop.wait())
        await asyncio.wait([stopping, self.reported], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if self.reported.done():
            self.reported.result()


class Daemon:
    def __init__(self, sessions: Sessions, mode: str) -> None:
        self.sessions = sessions
        self.status = Status(Metrics("1", with_process=False), name="shop", slot="slot")
        config: Any = SimpleNamespace(snapshot=SimpleNamespace(mode=mode))
        schemas: Any = None  # the supervisor only passes them to the session
        publications = PublicationMonitor(("pub",), self.status.metrics, halts_at_removal=False)
        self.supervisor = Supervisor(config, self.status, schemas, publications)
        self.task = asyncio.ensure_future(self.supervisor.run())

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                await asyncio.sleep(0.001)

    async def ended(self) -> int:
        return await asyncio.wait_for(self.task, DEADLINE_S)

    @property
    def state(self) -> str:
        return self.status.health.state


@contextlib.asynccontextmanager
async def daemon(
    monkeypatch: pytest.MonkeyPatch, *endings: object, mode: str = "initial"
) -> AsyncIterator[Daemon]:
    sessions = Sessions(*endings)
    monkeypatch.setattr(supervisor_module, "Session", sessions)
    one = Daemon(sessions, mode)
    try:
        yield one
    finally:
        one.task.cancel()
        await asyncio.gather(one.task, return_exceptions=True)


async def test_a_stop_ends_the_process_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    async with daemon(monkeypatch, STREAM) as one:
        await one.until(lambda: one.sessions.started == 1)
        one.supervisor.stop.set()
        assert await one.ended() == EXIT_OK
        assert one.state == "stopping"


async def test_auto_is_tried_again_with_growing_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []
    monkeypatch.setattr(supervisor_module, "delay_s", lambda n, chance: tries.append(n) or 0.0)
    gone = SourceUnavailable("gone")
    async with daemon(monkeypatch, gone, gone, gone, STREAM) as one:
        await one.until(lambda: one.sessions.started == 4)
        assert tries == [1, 2, 3]
        assert one.sessions.last_error == [None, gone, gone, gone]


async def test_bytes_that_the_protocol_does_not_have_are_believed_the_third_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The network may have damaged the bytes, so they are read again; the same error at one position halts."""
    monkeypatch.setattr(supervisor_module, "delay_s", lambda n, chance: 0.0)
    bad, gone = MessageTruncated("a message ends"), SourceUnavailable("gone")
    endings = [Durable(bad, 5), Durable(bad, 5), Durable(bad, 7), gone, Durable(bad, 7), Durable(bad, 7)]
    async with daemon(monkeypatch, *endings) as one:
        await one.until(lambda: one.state == "halted")
        assert one.sessions.started == 6
        one.supervisor.retry.set()
        await one.until(lambda: one.sessions.started == 9)  # a requested retry resets the count
        await one.until(lambda: one.state == "halted")
        assert one.sessions.started == 9


async def test_a_table_that_makes_the_snapshot_stale_again_and_again_halts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F81: although each attempt has a later consistent point, and errors that pass by themselves come in between."""
    monkeypatch.setattr(supervisor_module, "delay_s", lambda n, chance: 0.0)
    monkeypatch.setattr("cdcd.session.stale_tables.TRIES", 3)
    a, b = (SnapshotStale("another file", table=f"s.{name}") for name in "ab")
    gone, unnamed = SourceUnavailable("gone"), SnapshotStale("the exported snapshot ended")
    script = [
        Durable(a, 5),
        Durable(b, 6),
        Durable(unnamed, 7),
        Durable(a, 8),
        gone,
        unnamed,
        unnamed,
        Durable(a, 9),
    ]
    async with daemon(monkeypatch, *script, Streamed(gone), Durable(a, 11), Durable(a, 12), STREAM) as one:
        await one.until(lambda: one.state == "halted")
        assert one.sessions.started == 8
        assert "s.a" in one.status.page()["reason"]
        one.supervisor.retry.set()  # a requested retry resets the count, and so does streaming
        await one.until(lambda: one.sessions.started == 12)


async def test_a_large_transaction_that_goes_on_in_parts_is_no_stand_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its parts do not advance the LSN: three separate errors within it are not one repeated error."""
    monkeypatch.setattr(supervisor_module, "delay_s", lambda n, chance: 0.0)
    bad = Advanced(MessageTruncated("a message ends"))
    async with daemon(monkeypatch, *[bad] * 4, STREAM) as one:
        await one.until(lambda: one.sessions.started == 5)
        assert one.state != "halted"


async def test_slots_lost_between_sessions_that_advanced_are_separate_losses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F21: the WAL guard drops the slot in a back-off, where no position is known; each outage is resolved."""
    monkeypatch.setattr(supervisor_module, "delay_s", lambda n, chance: 3600.0)
    drop, gone = SlotDroppedByWalGuard("the guard drops it"), SourceUnavailable("gone")

    async def lose(one: Daemon) -> None:
        await one.until(lambda: one.state == "backoff" and one.supervisor._running is None)
        one.supervisor.fail_session(drop)
        await one.until(lambda: drop.code in one.status.page()["reason"])

    async def go_on(one: Daemon, started: int) -> None:
        one.supervisor.retry.set()
        await one.until(
            lambda: one.sessions.started == started and drop.code not in one.status.page()["reason"]
        )

    advanced = [Advanced(gone)] * 4
    async with daemon(monkeypatch, *advanced, gone, gone, mode="when_needed") as one:
        for outage in range(4):
            await lose(one)
            assert one.state == "backoff", f"outage {outage}"
            await go_on(one, outage + 2)
        await lose(one)  # from here on no session advances
        await go_on(one, 6)
        await lose(one)
        assert one.state == "halted"


async def test_what_streaming_has_failed_at_is_remembered_until_a_session_has_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise SlotActive, from the failed session's walsender, would switch streaming on again, endlessly."""
    monkeypatch.setattr(supervisor_module, "delay_s", lambda n, chance: 0.0)
    failed, held, gone = StreamingFailed("unsure"), SlotActive("held"), SourceUnavailable("gone")
    async with daemon(monkeypatch, Streamed(failed), held, gone, Streamed(gone), STREAM) as one:
        await one.until(lambda: one.sessions.started == 5)
        assert one.sessions.last_error == [None, failed, failed, failed, gone]


class Knotted(Ending):
    """A failed session in a reference cycle: it references the error, whose traceback references the session."""

    error: CdcdError | None = None

    async def run(self) -> None:
        try:
            raise SourceUnavailable("gone") from ValueError("why")
        except CdcdError as error:
            self.error = error
            raise


async def test_the_memory_of_a_session_is_released_before_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 35: a Kafka client that waits for garbage collection still uses threads and file descriptors."""
    held: list[weakref.ref[Ending]] = []
    alive: list[int] = []

    def new_session(_config: object, _state: object, stop: asyncio.Event, **_more: object) -> Ending:
        alive.append(sum(one() is not None for one in held))
        session = Knotted(None, stop) if len(held) < 5 else Ending(STREAM, stop)
        held.append(weakref.ref(session))
        return session

    monkeypatch.setattr(supervisor_module, "delay_s", lambda n, chance: 0.0)
    async with daemon(monkeypatch) as one:
        monkeypatch.setattr(supervisor_module, "Session", new_session)
        gc.disable()
        try:
            await one.until(lambda: len(held) == 6)
        finally:
            gc.enable()
    assert alive == [0] * 6


async def test_a_session_that_lived_long_starts_the_pauses_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []
    monkeypatch.setattr(supervisor_module, "delay_s", lambda n, chance: tries.append(n) or 0.0)
    monkeypatch.setattr(supervisor_module, "STABLE_S", -1.0)
    gone = SourceUnavailable("gone")
    async with daemon(monkeypatch, gone, gone, gone, STREAM) as one:
        await one.until(lambda: one.sessions.started == 4)
        assert tries == [1, 1, 1]


async def test_a_session_that_made_something_durable_starts_the_pauses_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sessions that repeatedly work for half a minute and are then disconnected do not reach long back-offs."""
    tries: list[int] = []
    monkeypatch.setattr(supervisor_module, "delay_s", lambda n, chance: tries.append(n) or 0.0)
    gone = SourceUnavailable("gone")
    async with daemon(monkeypatch, gone, gone, Advanced(gone), Advanced(gone), gone, gone, STREAM) as one:
        await one.until(lambda: one.sessions.started == 7)
        assert tries == [1, 2, 1, 1, 2, 3]


@pytest.mark.parametrize(
    ("error", "state"), [(SourceUnavailable("gone"), "backoff"), (SlotActive("held"), "waiting_slot")]
)
async def test_a_pause_says_what_is_waited_for_and_ends_with_a_stop_or_a_signal(
    monkeypatch: pytest.MonkeyPatch, error: CdcdError, state: str
) -> None:
    """F18, F74: the daemon waits for an active slot."""
    monkeypatch.setattr(supervisor_module, "delay_s", lambda n, chance: 3600.0)
    async with daemon(monkeypatch, error) as one:
        await one.until(lambda: one.state == state)
        assert error.code in one.status.page()["reason"]
        one.supervisor.retry.set()
        await one.until(lambda: one.sessions.started == 2)
        one.supervisor.stop.set()
        assert await one.ended() == EXIT_OK


async def test_operator_halts_stays_up_and_continues_after_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    """F19: the error is never skipped, and never retried automatically."""
    async with daemon(monkeypatch, SlotLost("gone"), STREAM) as one:
        await one.until(lambda: one.state == "halted")
        for _ in range(50):
            await asyncio.sleep(0)
        assert one.sessions.started == 1
        assert not one.task.done()
        one.supervisor.retry.set()
        await one.until(lambda: one.sessions.started == 2)


async def test_a_signal_from_before_the_halt_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with daemon(monkeypatch, SlotLost("gone")) as one:
        one.supervisor.retry.set()
        await one.until(lambda: one.state == "halted")
        for _ in range(50):
            await asyncio.sleep(0)
        assert one.sessions.started == 1


@pytest.mark.parametrize(
    ("error", "is_retry_advised"),
    [
        (SlotLost("gone", hint="decide"), False),
        (SourceBehind("restored", hint="decide"), False),
        (TopicReplaced("made again", hint="decide"), False),
        (PublicationMissing("gone", hint="create it"), True),
    ],
)
async def test_a_halt_advises_a_retry_only_where_it_may_help(
    monkeypatch: pytest.MonkeyPatch, error: CdcdError, is_retry_advised: bool
) -> None:
    with structlog.testing.capture_logs() as log:
        async with daemon(monkeypatch, error) as one:
            await one.until(lambda: one.state == "halted")
    (hint,) = [line["hint"] for line in log if line["event"] == "halted"]
    assert hint.startswith(error.advice)
    assert ("SIGHUP retries" in hint) == is_retry_advised


async def test_a_halted_daemon_can_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    async with daemon(monkeypatch, SlotLost("gone")) as one:
        await one.until(lambda: one.state == "halted")
        one.supervisor.stop.set()
        assert await one.ended() == EXIT_OK
        assert one.sessions.started == 1


async def test_never_ends_the_process_with_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    """F69: another daemon has fenced this one; to continue would disturb it."""
    async with daemon(monkeypatch, SinkFenced("taken over")) as one:
        assert await one.ended() == EXIT_FENCED
        assert one.sessions.started == 1


async def test_an_error_outside_the_tree_halts_without_showing_what_it_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with daemon(monkeypatch, ValueError("a row's value")) as one:
        await one.until(lambda: one.state == "halted")
        reason = one.status.page()["reason"]
        assert "CDCD-INTERNAL" in reason
        assert "ValueError" in reason
        assert "a row's value" not in reason


async def test_an_error_of_a_background_task_ends_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """F39, F72."""
    async with daemon(monkeypatch, STREAM) as one:
        await one.until(lambda: one.sessions.started == 1)
        one.supervisor.fail_session(PublicationMissing("gone"))
        await one.until(lambda: one.state == "halted")
        assert PublicationMissing.code in one.status.page()["reason"]


async def test_what_is_found_while_a_session_closes_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """F39, F42: the monitor reports a change of a publication only once."""
    async with daemon(monkeypatch, Closing(SourceUnavailable("gone")), STREAM) as one:
        await one.until(lambda: one.sessions.started == 1)
        one.supervisor.fail_session(PublicationMissing("gone"))
        await one.until(lambda: one.state == "halted")
        assert PublicationMissing.code in one.status.page()["reason"]
        one.supervisor.retry.set()
        await one.until(lambda: one.sessions.started == 2)


async def test_what_is_found_between_two_tries_ends_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """While Kafka is down each session ends soon; errors that the monitor finds meanwhile still count."""
    monkeypatch.setattr(supervisor_module, "delay_s", lambda _tries, _chance: 60.0)
    async with daemon(monkeypatch, SourceUnavailable("gone"), STREAM) as one:
        await one.until(lambda: one.state == "backoff")
        one.supervisor.fail_session(PublicationMissing("gone"))
        await one.until(lambda: one.state == "halted")
        assert one.sessions.started == 1
        one.supervisor.retry.set()
        await one.until(lambda: one.sessions.started == 2)


async def test_an_error_found_before_a_halt_does_not_halt_again_after_resume(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error was found before the halt was complete; the next start checks for itself whether it persists."""
    released = asyncio.Event()

    async def release_session(_error: object) -> None:
        await released.wait()

    monkeypatch.setattr(supervisor_module, "release_session", release_session)
    async with daemon(monkeypatch, SlotLost("gone"), STREAM) as one:
        await one.until(lambda: one.sessions.started == 1)
        one.supervisor.fail_session(PublicationMissing("gone"))
        released.set()
        await one.until(lambda: one.state == "halted")
        assert SlotLost.code in one.status.page()["reason"]
        one.supervisor.retry.set()
        await one.until(lambda: one.sessions.started == 2)


async def test_what_is_found_while_it_is_halted_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with daemon(monkeypatch, SlotLost("gone"), STREAM) as one:
        await one.until(lambda: one.state == "halted")
        one.supervisor.fail_session(PublicationMissing("gone"))
        assert SlotLost.code in one.status.page()["reason"]
        one.supervisor.retry.set()
        await one.until(lambda: one.sessions.started == 2)


@pytest.mark.parametrize("mode", ["when_needed", "always"])
async def test_the_next_start_decides_whether_a_lost_slot_needs_a_new_snapshot(
    monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """A halt that the decision of a start raises is final: that start has decided against a snapshot."""
    monkeypatch.setattr(supervisor_module, "delay_s", lambda n, chance: 0.0)
    lost = SlotLost("gone")
    async with daemon(monkeypatch, Streamed(lost), Streamed(lost), lost, mode=mode) as one:
        await one.until(lambda: one.state == "halted")
        assert one.sessions.started == 3


async def test_a_slot_that_is_lost_again_and_again_without_an_advance_halts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervisor_module, "delay_s", lambda n, chance: 0.0)
    async with daemon(monkeypatch, Copied(SlotLost("gone")), mode="when_needed") as one:
        await one.until(lambda: one.state == "halted")
        assert one.sessions.started == 3


async def test_a_slot_that_the_wal_guard_drops_needs_a_new_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a session runs at that time, or the daemon waits for the next try."""
    monkeypatch.setattr(supervisor_module, "delay_s", lambda _tries, _chance: 60.0)
    async with daemon(monkeypatch, STREAM, STREAM, mode="when_needed") as one:
        await one.until(lambda: one.sessions.started == 1)
        one.supervisor.fail_session(SlotDroppedByWalGuard("too much WAL"))
        await one.until(lambda: one.state == "backoff")
        one.supervisor.fail_session(SlotDroppedByWalGuard("more WAL"))
        await one.until(lambda: "more WAL" in str(one.status.page()["reason"]))
        assert one.state == "backoff"
        one.supervisor.retry.set()
        await one.until(lambda: one.sessions.started == 2)


DROPPED = SlotDroppedByWalGuard("too much WAL")
IDENTITY = ReplicaIdentityIncomplete("an UPDATE has no key")


async def test_a_slot_dropped_during_a_halt_is_the_reason_of_the_halt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F21: the halt has the reason and the resolution; other errors of monitors are found again at the start."""
    async with daemon(monkeypatch, IDENTITY, STREAM) as one:
        await one.until(lambda: one.state == "halted")
        one.supervisor.fail_session(PublicationMissing("gone"))
        assert IDENTITY.code in one.status.page()["reason"]
        one.supervisor.fail_session(DROPPED)
        page = one.status.page()
        assert (page["state"], page["reason"]) == ("halted", str(DROPPED))
        halted = {name for name, value in one.status.metrics.snapshot().items() if "halted" in name and value}
        assert any(DROPPED.code in name for name in halted)
        one.supervisor.retry.set()
        await one.until(lambda: one.sessions.started == 2)


@pytest.mark.parametrize("is_closing", [True, False])
async def test_a_slot_dropped_while_a_session_ends_is_the_reason_of_the_halt(
    monkeypatch: pytest.MonkeyPatch, *, is_closing: bool
) -> None:
    """`is_closing`: the session still closes for its own error; else it has ended, and the halt has not begun."""
    release = supervisor_module.release_session

    async def reported(error: BaseException | None) -> None:
        if not is_closing:
            one.supervisor.fail_session(DROPPED)
        await release(error)

    monkeypatch.setattr(supervisor_module, "release_session", reported)
    async with daemon(monkeypatch, Closing(IDENTITY) if is_closing else IDENTITY) as one:
        await one.until(lambda: one.sessions.started == 1)
        if is_closing:
            one.supervisor.fail_session(DROPPED)
        await one.until(lambda: one.state == "halted")
        assert DROPPED.code in one.status.page()["reason"]


async def test_no_session_begins_while_the_wal_guard_is_about_to_drop_the_slot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would hold the slot, which the guard then could not drop."""
    monkeypatch.setattr(supervisor_module, "delay_s", lambda n, chance: 0.0)
    async with daemon(monkeypatch, STREAM, STREAM, mode="when_needed") as one:
        await one.until(lambda: one.sessions.started == 1)
        one.status.may_begin.clear()
        one.supervisor.fail_session(DROPPED)
        await one.until(lambda: one.state == "backoff")
        for _ in range(10):
            one.supervisor.retry.set()
            await asyncio.sleep(0.001)
        assert one.sessions.started == 1
        one.status.may_begin.set()
        await one.until(lambda: one.sessions.started == 2)
        one.status.may_begin.clear()
        one.supervisor.fail_session(DROPPED)
        await one.until(lambda: one.state == "backoff")
        one.supervisor.stop.set()
        assert await one.ended() == EXIT_OK
        assert one.sessions.started == 2


async def test_a_process_takes_one_snapshot_with_mode_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one for each session: it is due until a session has begun to copy."""
    monkeypatch.setattr(supervisor_module, "delay_s", lambda n, chance: 0.0)
    gone = SourceUnavailable("gone")
    async with daemon(monkeypatch, gone, Copied(gone), Streamed(gone), STREAM, mode="always") as one:
        await one.until(lambda: one.sessions.started == 4)
        assert one.sessions.snapshot_due == [True, True, False, False]
    async with daemon(monkeypatch, gone, STREAM, mode="when_needed") as one:
        await one.until(lambda: one.sessions.started == 2)
        assert one.sessions.snapshot_due == [False, False]


@pytest.mark.parametrize("steps", range(14))
async def test_a_slot_to_be_dropped_is_held_by_no_session_that_begins_after_a_halt(
    monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """At each moment between the command that ends the halt and the session."""
    async with daemon(monkeypatch, IDENTITY, STREAM) as one:
        await one.until(lambda: one.state == "halted")
        one.supervisor.retry.set()
        for _ in range(steps):
            await asyncio.sleep(0)
        one.status.may_begin.clear()  # as the WAL guard does
        one.supervisor.fail_session(DROPPED)
        for _ in range(50):
            await asyncio.sleep(0)
        assert one.supervisor._running is None
        one.status.may_begin.set()
