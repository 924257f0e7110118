"""One simulation: work, sessions that end anywhere, the daemon's core, and the comparison with what was committed.

In: a seed, perhaps the points where the connection breaks.  Out: nothing, or an AssertionError with the seed.
Every session has a new core, starts from a position that was stored before, and what it had not made durable is
lost. One that could not tell whose its messages are is followed by one without streaming. Judged are the
transactions in Kafka, each once, in commit order, and each position that is confirmed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from random import Random

from cdcd.errors import StreamUnsure
from cdcd.source.copyboth import cut_items
from cdcd.source.settings import Streaming, StreamOptions
from tests.simulator.daemon import Kafka, Seen, Session
from tests.simulator.walsender import Walsender
from tests.simulator.workload import Committed, Emitted, End, Generator, Loose, Prepare, Work

WAYS: tuple[tuple[int, Streaming], ...] = (
    (1, "off"), (2, "off"), (2, "on"), (3, "on"), (4, "off"), (4, "on"), (4, "parallel"), (4, "parallel"),
)  # fmt: skip
TWO_PHASE_WAYS = tuple(way for way in WAYS if way[0] >= 3)


def expected(work: Work) -> list[tuple[Seen, list[Seen]]]:
    """What the model says, in commit order, without transactions that have nothing to show."""
    return [
        ((one.xid, one.commit_lsn, one.end_lsn, one.origin), list(_model(one)))
        for one in work.committed
        if one.whats
    ]


def _model(one: Committed) -> Iterator[Seen]:
    for what in one.whats:
        if isinstance(what, Emitted):
            yield ("M", what.content)
        elif hasattr(what, "verb"):
            yield (what.verb, what.schema.relid, what.schema.columns, what.values)
        else:
            tables = tuple((schema.relid, schema.columns) for schema in what.schemas)
            yield ("T", tables, bool(what.options & 1), bool(what.options & 2))


class Simulation:
    """The work, what is durable of it, and the slot, over all sessions."""

    def __init__(self, work: Work, random: Random) -> None:
        self._work = work
        self._random = random
        self._kafka = Kafka()
        self._may_stream = True
        self._two_phase_at_lsn: int | None = None
        """From where on what is prepared comes at its PREPARE; None before two_phase is switched on."""
        self._prepares = [record for record in work.wal if isinstance(record, Prepare)]
        ends = [record for record in work.wal if isinstance(record, End)]
        self._ends = {end.prepared.lsn: end.lsn for end in ends if end.prepared is not None}

    def session(self, limit: int | None, *, two_phase: bool) -> int:
        """Run one session; after `limit` messages its connection breaks. Return how many were sent."""
        random = Random(self._random.random())
        version, streaming = random.choice(TWO_PHASE_WAYS if two_phase else WAYS)
        streaming = streaming if self._may_stream else "off"
        options = StreamOptions(version, streaming, messages=True, two_phase=two_phase)
        if two_phase and self._two_phase_at_lsn is None:
            self._two_phase_at_lsn = self._kafka.ends[-1]  # the daemon asks for the last position
        start_lsn = self._start_lsn(random)
        at_lsn = self._two_phase_at_lsn or 0
        walsender = Walsender(self._work.wal, options, start_lsn, random, two_phase_at_lsn=at_lsn)

        def confirmed(lsn: int) -> None:
            self._confirmed(lsn, start_lsn, walsender.decided)

        session = Session(self._kafka, options, start_lsn, random, confirmed)
        sent, self._may_stream = _run(session, walsender, limit, random)
        if not self._may_stream:  # as the daemon does it
            assert streaming != "off"
            return sent if limit is not None else sent + self.session(None, two_phase=two_phase)
        if limit is None or random.random() < 0.3:
            session.flush()
        if limit is None:
            # Without two_phase what is never decided is a stream that never ends.
            endless = 0 if two_phase else len(self._prepares) - len(self._ends)
            assert session.assembler.open_streams <= endless, "streams left open though all have ended"
        return sent

    def _start_lsn(self, random: Random) -> int:
        """A position that was stored, mostly the last; none before two_phase was switched on."""
        ends = [end for end in self._kafka.ends if end >= (self._two_phase_at_lsn or 0)]
        return random.choice([random.choice(ends), *ends[-1:] * 3])

    def _confirmed(self, lsn: int, start_lsn: int, decided: set[int]) -> None:
        """F2, F7, F33: what begins before a position that is confirmed does not come again."""
        for one in self._work.committed:
            if one.whats and one.commit_lsn < lsn:
                assert one.commit_lsn in self._kafka.commit_lsns, "confirmed before it is durable"
        if self._two_phase_at_lsn is not None:
            for prepare in self._prepares:
                if start_lsn <= prepare.lsn < lsn:
                    decision_lsn = self._ends.get(prepare.lsn)
                    assert decision_lsn in decided, "confirmed beyond a PREPARE that is undecided"

    def compare(self) -> None:
        """Each committed transaction is there once, in commit order, and nothing else is."""
        found = self._kafka.transactions
        assert [(head, whats) for head, whats in found if whats] == expected(self._work)
        assert self._kafka.loose == [one.content for one in self._work.wal if isinstance(one, Loose)]


def simulate(
    seed: int,
    *,
    breaks: Iterable[int] | None = None,
    steps: int | None = None,
    two_phase_from: int | None = None,
) -> int:
    """Run one simulation; the number of CopyData messages sent. AssertionError where model and core differ.

    `breaks`: after how many messages each session but the last one ends; random by default, as is the session
    that switches two_phase on for itself and all later ones, if any does.
    """
    random = Random(seed)
    work = Generator(random).work(steps or random.choice([10, 40, 40, 120, 300]))
    if breaks is None:
        breaks = [random.randint(0, 200) for _ in range(random.choice([0, 0, 1, 2, 4]))]
    if two_phase_from is None:
        two_phase_from = random.choice([0, 0, 1, 2, 100])
    simulation = Simulation(work, random)
    sent = sum(
        simulation.session(limit, two_phase=number >= two_phase_from)
        for number, limit in enumerate((*breaks, None))
    )
    simulation.compare()
    return sent


def _run(session: Session, walsender: Walsender, limit: int | None, random: Random) -> tuple[int, bool]:
    """Return how many messages were sent, and whether the next session may stream."""
    payloads = iter(walsender.payloads())
    in_stream, sent = False, 0
    while True:
        size = random.choice([1, 1, 3, 20])
        if limit is not None:
            size = min(size, limit - sent)
        batch = list(itertools.islice(payloads, size))
        if not batch:
            return sent, True
        sent += len(batch)
        items, in_stream = cut_items(batch, in_stream)
        try:
            session.feed(items)
        except StreamUnsure:
            return sent, False
