"""Which publication changes halt; a resume accepts exactly the changes that the halt named (F39, F42)."""

from __future__ import annotations

import pytest

from cdcd.errors import CdcdError
from cdcd.monitoring.publication_monitor import Comparison, PublicationMonitor
from cdcd.ops.metrics import Metrics
from cdcd.sink.topic_identity import TopicIdentities
from cdcd.source.publication_diff import Publication, PublicationEntry, Published, changes, dump
from cdcd.source.unpublished_tables import UnpublishedTable

NAMES = {1: "public.s", 2: "public.t", 3: "public.u"}


def pub(tables: dict[int, int], oid: int = 10) -> Published:
    """Return a publication with these tables and the oids of their entries."""
    by_oid = {relid: PublicationEntry(NAMES[relid], entry=entry) for relid, entry in tables.items()}
    return {"pub": Publication(oid, "insert", tables=by_oid)}


class Watched:
    """A monitor that reads the given states in sequence; every table exists all the time."""

    def __init__(self, first: Published) -> None:
        self.watch = PublicationMonitor(("pub",), Metrics("0", with_process=False), halts_at_removal=True)
        self.before: Published | None = None
        self.halt: CdcdError | None = None
        self.begin(TopicIdentities())
        assert not self.halts(first)

    def begin(self, identities: TopicIdentities) -> None:
        self.identities = identities
        self.watch.begin(identities, is_anew=False)

    def halts(self, now: Published) -> bool:
        before = self.watch._accepted
        known = {} if before is None else before["pub"].tables
        not_published = [
            UnpublishedTable(relid, *table.name.split("."))
            for relid, table in known.items()
            if relid not in now["pub"].tables
        ]
        found = [] if before is None else changes(before, now, not_published)
        self.halt = self.watch.judge(Comparison(before, now, [], found))
        return self.halt is not None

    def resume(self) -> None:
        assert self.halt is not None
        self.watch.resumed(self.halt)


BOTH, S = {1: 100, 2: 101}, {1: 100}
HALT, RESUME = True, "resume"


@pytest.mark.parametrize(
    ("first", "steps"),
    [
        # A second removal is a new change, although the publication equals that after the first removal.
        (pub(BOTH), [(pub(S), HALT), RESUME, pub(S), pub({1: 100, 2: 102}), (pub(S), HALT)]),
        # The same without distinguishing entries: a partition that is detached, attached, and detached again.
        (pub({1: 100, 2: 0}), [(pub(S), HALT), RESUME, pub(S), pub({1: 100, 2: 0}), (pub(S), HALT)]),
        (pub({1: 100, 2: 0}), [(pub(S), HALT), RESUME, pub({1: 100, 2: 0}), (pub(S), HALT)]),
        # An unrelated change between the halt and the resume does not cause a second halt.
        (pub(BOTH), [(pub(S), HALT), RESUME, pub({1: 100, 3: 103})]),
        (pub(S), [(pub(S, 11), HALT), RESUME, pub(BOTH, 11)]),
        (pub(BOTH), [(pub({2: 105}, 11), HALT), RESUME, pub({1: 104, 2: 105}, 11)]),
        # Another change that halts by itself does.
        (pub(BOTH), [(pub(S), HALT), RESUME, (pub({}), HALT), RESUME, pub({})]),
        (pub(S), [(pub(S, 11), HALT), RESUME, (pub(S, 12), HALT), RESUME, pub(S, 12)]),
        (pub(BOTH), [(pub(S), HALT), RESUME, (pub({1: 100, 2: 102}), HALT), RESUME, pub({1: 100, 2: 102})]),
        (pub(BOTH), [(pub({1: 100, 2: 102}), HALT), RESUME, (pub({1: 100, 2: 103}), HALT)]),
        # One of two removals is undone: the other one was accepted.
        (pub(BOTH), [(pub({}), HALT), RESUME, (pub(S | {1: 104}), HALT)]),
        (pub({1: 0, 2: 101}), [(pub({}), HALT), RESUME, pub({1: 0})]),
    ],
)
def test_who_goes_on_accepts_what_the_halt_named(first: Published, steps: list[object]) -> None:
    watched = Watched(first)
    for number, step in enumerate(steps):
        if step == RESUME:
            watched.resume()
            continue
        now, expected = step if isinstance(step, tuple) else (step, False)
        assert watched.halts(now) == expected, (number, str(watched.halt))  # type: ignore[arg-type]


def test_a_change_before_the_start_is_reported_even_after_an_earlier_query() -> None:
    """The monitor queries before a session has read the stored state, so the first result is not compared."""
    identities = TopicIdentities()
    identities.publish(dump(pub(BOTH)))
    metrics = Metrics("0", with_process=False)
    watch = PublicationMonitor(("pub",), metrics, halts_at_removal=False)
    watch.judge(Comparison(None, pub(S), [], []))
    watch.begin(identities, is_anew=False)
    before = watch._accepted
    assert before is not None
    watch.judge(Comparison(before, pub(S), [], changes(before, pub(S))))
    assert metrics.snapshot()['cdcd_publication_changes_total{change="table_gone"}'] == 1


def test_an_acceptance_lasts_until_it_is_stored() -> None:
    """A session that ends before its first transaction leaves the record unchanged, but causes no second halt."""
    watched = Watched(pub(BOTH | {3: 103}))
    first = watched.identities.dump()
    for now in (pub({1: 100, 3: 103}), pub(S)):
        assert watched.halts(now)
        watched.resume()
        watched.begin(TopicIdentities.load(first, 0))
        assert not watched.halts(now)
