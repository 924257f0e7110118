"""One simulation: work, sessions that end anywhere, the daemon's core, and the comparison with the committed work.

In: a seed, or a shrunk case.  Out: the number of messages, or an AssertionError.
Every session has a new core and starts from a stored position. At its end, changes that are not durable are lost,
unless their commit was already sent. Errors of Kafka may end a session. If streaming is unsafe, because the owner of
a message is not known, the next session has no streaming. The judge checks the transactions in Kafka, each once and
in commit order, and each confirmed position. Half of the simulations have the daemon's options, some on a server that
does not report everything. The slot may have belonged to another client that confirmed PREPAREs: then each session
continues up to the first COMMIT PREPARED of such a transaction, and halts there.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from cdcd.ack.group import CommitPosition
from cdcd.errors import CdcdError, PreparedMissing, SinkUnavailable, UnsafeStreaming
from cdcd.model import Item, PreparedBefore
from cdcd.source.copyboth import cut_items
from cdcd.source.settings import Streaming, StreamOptions
from tests.simulator import clock
from tests.simulator.daemon import Daemon, Session
from tests.simulator.kafka import Kafka, MessageFields, Odds, Sink
from tests.simulator.walsender import Walsender
from tests.simulator.workload import Committed, Emitted, End, Generator, Loose, Prepare, SubAbort, Work

WAYS: tuple[tuple[int, Streaming], ...] = (
    (1, "off"), (2, "off"), (2, "on"), (3, "on"), (4, "off"), (4, "on"), (4, "parallel"), (4, "parallel"),
)  # fmt: skip
TWO_PHASE_WAYS = tuple(way for way in WAYS if way[0] >= 3)


def expected(
    work: Work, from_lsn: int = 0, to_lsn: int | None = None
) -> list[tuple[MessageFields, list[MessageFields]]]:
    """Return the model's transactions in commit order, without empty ones."""
    return [
        ((one.xid, one.commit_lsn, one.origin), list(_model(one)))
        for one in work.committed
        if one.whats and from_lsn <= one.commit_lsn and (to_lsn is None or one.commit_lsn < to_lsn)
    ]


def _model(one: Committed) -> Iterator[MessageFields]:
    for what in one.whats:
        if isinstance(what, Emitted):
            yield ("M", what.content)
        elif hasattr(what, "verb"):
            yield (what.verb, what.schema.relid, what.schema.columns, what.values)
        else:
            tables = tuple((schema.relid, schema.columns) for schema in what.schemas)
            yield ("T", tables, bool(what.options & 1), bool(what.options & 2))


class Simulation:
    """The work, its durable part, and the slot, over all sessions."""

    def __init__(
        self,
        work: Work,
        random: Random,
        *,
        is_daemon: bool = False,
        is_foreign: bool = False,
        odds: Odds | None = None,
    ) -> None:
        """`is_foreign`: another client has confirmed a part of the WAL, through a slot with two_phase.

        `odds`: the faults of Kafka; by default each session has other odds.
        """
        self._work = work
        self._random = random
        self._kafka = Kafka()
        self._odds = odds
        self._may_stream = True
        self._two_phase_at_lsn: int | None = None
        """From this LSN on, prepared transactions are sent at PREPARE; None before two_phase is switched on."""
        self._prepares = [record for record in work.wal if isinstance(record, Prepare)]
        self._decisions = [one for one in work.wal if isinstance(one, End) and one.prepared is not None]
        self._ends = {end.prepared.lsn: end.lsn for end in self._decisions if end.prepared is not None}
        self._is_daemon = is_daemon
        self._is_foreign = is_foreign
        self._rolled_back = frozenset(
            xid for one in work.wal if isinstance(one, SubAbort) for xid in one.xids
        )
        self.loss_lsn: int | None = None
        """The LSN of the first COMMIT PREPARED whose rows are not sent."""
        if is_foreign:
            self._confirm_as_others()

    def _confirm_as_others(self) -> None:
        """Confirm a random position, mostly between a PREPARE and its COMMIT PREPARED."""
        commits = [(one.prepared, one) for one in self._decisions if one.is_commit and one.prepared]
        lsns = [one.lsn for one in self._work.wal]
        if commits and self._random.random() < 0.8:
            prepare, end = self._random.choice(commits)
            lsns = [lsn for lsn in lsns if prepare.lsn < lsn <= end.lsn]
        lsn = self._random.choice(lsns)
        self._two_phase_at_lsn = 0
        self._kafka.ends = [lsn]
        self._kafka.progress = CommitPosition(0, lsn, 0)
        self.loss_lsn = next((end.lsn for prepare, end in commits if prepare.lsn < lsn <= end.lsn), None)

    def _daemon(self, start_lsn: int) -> Daemon | None:
        """Return the daemon's state; a daemon queries prepared transactions only before it has stored a position."""
        if not self._is_daemon:
            return None
        if self._is_foreign and len(self._kafka.ends) == 1:
            before = self._asked(
                self._random.choice([one.lsn for one in self._work.wal if one.lsn >= start_lsn])
            )
        else:
            before = self._kafka.progress.prepared_before
        return Daemon(before, self._rolled_back)

    def _asked(self, now_lsn: int) -> PreparedBefore:
        """Return the prepared transactions of a server whose WAL ends there."""
        undecided = {
            (one.top, one.gid)
            for one in self._prepares
            if one.lsn < now_lsn and self._ends.get(one.lsn, now_lsn) >= now_lsn
        }
        return PreparedBefore(now_lsn, frozenset(undecided))

    def session(self, limit: int | None, *, two_phase: bool) -> int:
        """Run one session; after `limit` messages its connection breaks. Return the number of messages sent."""
        random = Random(self._random.random())
        sink = Sink(self._kafka, random, self._odds or Odds.of(random))  # F76: first of all
        version, streaming = random.choice(TWO_PHASE_WAYS if two_phase else WAYS)
        streaming = streaming if self._may_stream else "off"
        options = StreamOptions(version, streaming, messages=True, two_phase=two_phase)
        if two_phase and self._two_phase_at_lsn is None:
            self._two_phase_at_lsn = self._kafka.ends[-1]  # the daemon starts at the last position
        start_lsn = self._start_lsn(random)
        at_lsn = self._two_phase_at_lsn or 0
        daemon = self._daemon(start_lsn)
        # On another client's slot, a transaction that only locked rows looks like a loss.
        is_reticent = self._is_daemon and not self._is_foreign and random.random() < 0.5
        walsender = Walsender(
            self._work.wal, options, start_lsn, random, two_phase_at_lsn=at_lsn, is_reticent=is_reticent
        )

        def confirmed(lsn: int) -> None:
            self._confirmed(lsn, start_lsn, walsender)

        wire = _Wire(walsender, limit, random)
        is_stopped = limit is None or random.random() < 0.3

        async def lived() -> tuple[Session, CdcdError | None]:
            session = Session(self._kafka, sink, options, start_lsn, random, confirmed, daemon)
            return session, await session.run(wire, is_stopped=is_stopped)

        session, ended_by = clock.run(lived())
        sent = wire.sent
        self._may_stream = not isinstance(ended_by, UnsafeStreaming)
        if not self._may_stream:  # like the daemon
            assert streaming != "off"
            return sent if limit is not None else sent + self.session(None, two_phase=two_phase)
        if isinstance(ended_by, PreparedMissing):
            assert ended_by.context["commit_lsn"] == self.loss_lsn, "a loss is reported where there is none"
        elif isinstance(ended_by, SinkUnavailable) and limit is None:
            return sent + self.session(None, two_phase=two_phase)  # like the daemon
        if limit is None and ended_by is None:
            # Without two_phase the stream of an undecided prepared transaction never ends.
            endless = 0 if two_phase else len(self._prepares) - len(self._ends)
            assert session.assembler.open_streams <= endless, (
                "a stream is open although its transaction has ended"
            )
        return sent

    def _start_lsn(self, random: Random) -> int:
        """Return a stored position, mostly the last one, and none from before two_phase was switched on."""
        ends = [end for end in self._kafka.ends if end >= (self._two_phase_at_lsn or 0)]
        return random.choice([random.choice(ends), *ends[-1:] * 3])

    def _confirmed(self, lsn: int, start_lsn: int, walsender: Walsender) -> None:
        """F2, F7, F33: check a confirmed position, because WAL before it is not sent again."""
        for one in self._work.committed:
            if one.whats and self._from_lsn <= one.commit_lsn < lsn:
                assert one.commit_lsn in self._kafka.commit_lsns, (
                    "a transaction is confirmed before it is durable"
                )
        if self._two_phase_at_lsn is not None:
            for prepare in self._prepares:
                if start_lsn <= prepare.lsn < lsn and prepare.lsn not in walsender.passed_over:
                    decision_lsn = self._ends.get(prepare.lsn)
                    assert decision_lsn in walsender.decided, (
                        "the confirmed position is behind an undecided PREPARE"
                    )

    def compare(self) -> None:
        """Assert that each committed transaction is there once, in commit order, and nothing else."""
        found = self._kafka.transactions
        wanted = expected(self._work, self._from_lsn, self.loss_lsn)
        assert [(head, whats) for head, whats in found if whats] == wanted
        loose = [one for one in self._work.wal if isinstance(one, Loose)]
        assert self._kafka.loose == [
            one.content
            for one in loose
            if one.lsn >= self._from_lsn and (self.loss_lsn is None or one.lsn < self.loss_lsn)
        ]

    @property
    def _from_lsn(self) -> int:
        return self._kafka.ends[0]


@dataclass(frozen=True)
class Case:
    """All parameters of a simulation. `odds` None: each session has random odds of Kafka's faults.

    `breaks`: the number of messages of each session but the last one. Sessions from number `two_phase_from` on have
    two_phase. `is_daemon`: with the daemon's options. `is_foreign`: on another client's slot, which has two_phase.
    """

    seed: int
    steps: int
    breaks: tuple[int, ...]
    two_phase_from: int
    is_daemon: bool
    is_foreign: bool
    odds: Odds | None = None


def drawn(seed: int, **given: Any) -> Case:
    """Return the seed's case with the given parameters replaced."""
    random = Random(f"{seed} case")
    steps = random.choice([10, 40, 40, 120, 300])
    breaks = tuple(random.randint(0, 200) for _ in range(random.choice([0, 0, 1, 2, 4])))
    two_phase_from = given.get("two_phase_from", random.choice([0, 0, 1, 2, 100]))
    is_daemon = given.get("is_daemon", bool(given.get("is_foreign")) or random.random() < 0.5)
    is_foreign = is_daemon and two_phase_from == 0 and random.random() < 0.3
    case = Case(seed, steps, breaks, two_phase_from, is_daemon, is_foreign)
    return replace(case, **given)


def simulate(seed: int, **given: Any) -> int:
    """Run the seed's simulation. Return the number of CopyData messages. AssertionError if model and core differ."""
    return run(drawn(seed, **given))


def run(case: Case) -> int:
    """Run one simulation like `simulate`. The work depends only on the seed: fewer steps are a prefix of it."""
    work = Generator(Random(f"{case.seed} work")).work(case.steps)
    random = Random(f"{case.seed} sessions")
    simulation = Simulation(
        work, random, is_daemon=case.is_daemon, is_foreign=case.is_foreign, odds=case.odds
    )
    sent = sum(
        simulation.session(limit, two_phase=number >= case.two_phase_from)
        for number, limit in enumerate((*case.breaks, None))
    )
    simulation.compare()
    return sent


class _Wire:
    """The batches of items of one session; `sent` counts their messages."""

    def __init__(self, walsender: Walsender, limit: int | None, random: Random) -> None:
        self._walsender, self._limit, self._random = walsender, limit, random
        self.sent = 0

    def __iter__(self) -> Iterator[list[Item]]:
        """Yield batches of random sizes, until the connection breaks or the messages end."""
        payloads, in_stream = iter(self._walsender.payloads()), False
        while True:
            size = self._random.choice([1, 1, 3, 20])
            if self._limit is not None:
                size = min(size, self._limit - self.sent)
            batch = list(itertools.islice(payloads, size))
            if not batch:
                return
            self.sent += len(batch)
            items, in_stream = cut_items(batch, in_stream)
            yield items
