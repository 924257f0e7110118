"""The pure core against a simulated server: exactly the committed changes arrive, also after aborts and disconnects.

`python -m tests.simulator --first SEED --count 1` runs a failing seed alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from dataclasses import replace
from itertools import product
from random import Random

import pytest

from cdcd.ack.group import CommitPosition, Group, SafeLsn
from cdcd.errors import SinkUnavailable
from cdcd.model import PreparedBefore, Progress
from cdcd.pipeline.event_encoder import EventEncoder
from cdcd.pipeline.stream_progress import StreamProgress
from cdcd.pipeline.writer import Writer
from cdcd.txn.events import TransactionBegun
from tests.simulator.daemon import Daemon, _Encoder
from tests.simulator.judge import Case, drawn, expected, run, simulate
from tests.simulator.regressions import REGRESSIONS
from tests.simulator.shrink import failure_of, shrunk
from tests.simulator.workload import Generator, Prepare, SubAbort, Work
from tests.support.nightly import nightly_except


@pytest.mark.parametrize("block", nightly_except(range(8), 0))
def test_exactly_what_was_committed_arrives_in_commit_order(block: int) -> None:
    """F26 to F29, F33, F43: interleaved streams, nested aborts, prepared transactions, relations, reconnects."""
    for seed in range(block * 50, block * 50 + 50):
        simulate(seed)


@pytest.mark.parametrize(
    ("seed", "two_phase_from"), nightly_except(product(range(3), range(3)), (1, 2), (2, 0))
)
def test_the_connection_may_break_at_each_point(seed: int, two_phase_from: int) -> None:
    """F27, F33: a new session from any stored position completes the work. `two_phase_from` 2: never."""
    messages = simulate(seed, breaks=(), steps=40, two_phase_from=two_phase_from)
    for point in range(messages + 1):
        simulate(seed, breaks=(point,), steps=40, two_phase_from=two_phase_from)


@pytest.mark.parametrize("block", nightly_except(range(4), 0))
def test_a_foreign_slot_halts_exactly_where_rows_are_lost(block: int) -> None:
    """F33: this holds for any session and any stored position."""
    for seed in range(block * 50, block * 50 + 50):
        simulate(seed, two_phase_from=0, is_foreign=True)


def test_the_loss_is_noticed_wherever_the_connection_breaks() -> None:
    """F33: the facts that the check needs survive a session."""
    for seed in (3, 17, 44):
        for point in range(simulate(seed, breaks=(), two_phase_from=0, is_foreign=True) + 1):
            simulate(seed, breaks=(point, 1), two_phase_from=0, is_foreign=True)


def _position_without(**fields: object) -> Callable[..., CommitPosition]:
    commit_position = StreamProgress.commit_position

    def changed(self: StreamProgress, *, transactions: int = 0) -> CommitPosition:
        made = commit_position(self, transactions=transactions)
        return replace(made, prepared_before=replace(made.prepared_before, **fields))  # type: ignore[arg-type]

    return changed


async def _never(_self: Daemon, _xids: Collection[int]) -> bool:
    return False


async def _confirm_first(self: Writer) -> None:
    assert self._group.commit_position is not None
    self._confirm(self._group.commit_position.end_lsn)
    await _commit_group(self)


async def _take_for_committed(self: Writer) -> None:
    commit_position = self._group.commit_position
    assert commit_position is not None
    try:
        await _commit_group(self)
    except SinkUnavailable:
        self._confirm(self._safe.advance(commit_position.end_lsn))
        raise


async def _write_again(self: EventEncoder, event: TransactionBegun) -> None:
    self._progress.position.commit_lsn -= 1
    await _begun(self, event)
    self._progress.position.commit_lsn += 1


def _same_epoch(self: Writer, progress: Progress) -> None:
    self._sink.commit(progress)


_commit_group, _begun = Writer._commit_group, EventEncoder._begun


@pytest.mark.parametrize(
    ("where", "name", "mutant", "is_foreign"),
    [
        pytest.param(
            StreamProgress,
            "commit_position",
            _position_without(undecided=frozenset()),
            True,
            id="undecided are forgotten",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            StreamProgress,
            "commit_position",
            _position_without(until_lsn=0),
            True,
            id="decided meanwhile is forgotten",
        ),
        pytest.param(
            PreparedBefore,
            "may_have_rows",
            lambda *_: True,
            False,
            id="every transaction counts as lost",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            Daemon,
            "any_rolled_back",
            _never,
            False,
            id="rollbacks are not queried",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            SafeLsn, "advance", lambda _, end_lsn: end_lsn + 1, False, id="F2: confirmed one byte too far"
        ),
        pytest.param(Writer, "_commit_group", _confirm_first, False, id="F7: confirmed before the commit"),
        pytest.param(
            Writer,
            "_commit_group",
            _take_for_committed,
            False,
            id="F76: an unknown outcome counts as committed",
        ),
        pytest.param(
            Writer,
            "_make_durable",
            _same_epoch,
            False,
            id="F77: the next commit has the same epoch",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            EventEncoder, "_begun", _write_again, False, id="F4: the last transaction is written again"
        ),
        pytest.param(
            Group,
            "_must_close",
            lambda *_: True,
            False,
            id="a group that must always close makes no progress",
        ),
    ],
)
def test_a_planted_bug_is_detected(
    where: type, name: str, mutant: object, is_foreign: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A case finds the bug, and the shrunk case finds the same failure."""
    monkeypatch.setattr(where, name, mutant)
    cases = (drawn(seed, two_phase_from=0, is_daemon=True, is_foreign=is_foreign) for seed in range(300))
    failing = next((case for case in cases if failure_of(case) is not None), None)
    assert failing is not None
    small = shrunk(failing)
    assert failure_of(small) == failure_of(failing)
    assert small.steps <= failing.steps
    assert len(small.breaks) <= len(failing.breaks)


def test_a_case_is_the_same_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The load of the machine does not change a case, so a failure can be reproduced."""

    def read_clock() -> int:
        raise AssertionError("the simulator has read the machine's clock")

    monkeypatch.setattr("time.monotonic_ns", read_clock)
    for seed in range(20):
        run(drawn(seed, is_daemon=True))


@pytest.mark.parametrize("case", REGRESSIONS, ids=lambda case: str(case.seed))
def test_stored_cases_pass(case: Case) -> None:
    """Shrunk cases that once found a defect."""
    run(case)


def test_the_workload_has_each_feature_that_it_is_meant_to_test() -> None:
    work = [Generator(Random(seed)).work(120) for seed in range(50)]
    aborts = [len(record.xids) for one in work for record in one.wal if isinstance(record, SubAbort)]
    assert max(aborts) >= 4, "nested and released subtransactions abort together"
    kinds = {what[0] for one in work for _, whats in expected(one) for what in whats}
    assert kinds == {"I", "U", "D", "T", "M"}
    columns = [what[2] for one in work for _, whats in expected(one) for what in whats if what[0] == "I"]
    assert len(set(columns)) > 20, "tables are altered"
    assert max(map(most_undecided, work)) == 3, "several are prepared at once"
    assert any(most_undecided(one, at_the_end=True) for one in work), "some are never decided"


def most_undecided(work: Work, *, at_the_end: bool = False) -> int:
    """Return the highest number of prepared transactions at once, or their number at the end."""
    undecided, most = 0, 0
    for record in work.wal:
        undecided += isinstance(record, Prepare)
        undecided -= getattr(record, "prepared", None) is not None
        most = max(most, undecided)
    return undecided if at_the_end else most


def test_the_encoder_has_each_method_that_the_simulator_replaces() -> None:
    """If the encoder renamed one, the simulator's version would not be called, and the encoder's own needs plans."""
    own = {name for name, value in vars(_Encoder).items() if inspect.isfunction(value)} - {
        "_write",
        "__init__",
    }
    assert own
    assert own <= vars(EventEncoder).keys()
