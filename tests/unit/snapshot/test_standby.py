"""The standby of `snapshot.from`: which server is refused, and how its errors are reported."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdcd.errors import (
    CdcdError,
    Retry,
    SlotLost,
    SnapshotStale,
    SourceAuthentication,
    SourceSetup,
    SourceUnavailable,
    StandbyUnavailable,
    StandbyUnusable,
)
from cdcd.snapshot.standby import StandbyState, check_history, check_state, check_version, of_standby
from cdcd.source.error_map import ServerReport, failure_for
from cdcd.source.identity import ServerIdentity

PRIMARY = ServerIdentity("77", 3, "shop", 180_001, 900, in_recovery=False)
GOOD = StandbyState(
    system_identifier="77",
    timeline=3,
    version_num=180_001,
    in_recovery=True,
    replayed_lsn=500,
    is_paused=False,
    database="shop",
    wal_level="logical",
    has_feedback=True,
    started_us=1,
)


@pytest.mark.parametrize(
    "state",
    [
        GOOD,
        replace(GOOD, timeline=2),  # it has not reached the promotion of its primary yet
        replace(GOOD, is_paused=True),
        replace(GOOD, has_feedback=False),
    ],
)
def test_a_standby_that_follows_is_accepted(state: StandbyState) -> None:
    check_state(state, PRIMARY)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (replace(GOOD, system_identifier="78"), "another cluster"),
        (replace(GOOD, in_recovery=False), "not a standby"),
        (replace(GOOD, in_recovery=False, timeline=4), "not a standby"),
        (replace(GOOD, timeline=4), "another timeline"),
        (replace(GOOD, database="other"), "names database other"),
        (replace(GOOD, wal_level="replica"), "wal_level"),
    ],
)
def test_a_server_that_is_no_standby_of_the_primary_is_refused(state: StandbyState, words: str) -> None:
    with pytest.raises(StandbyUnusable, match=words) as caught:
        check_state(state, PRIMARY)
    assert caught.value.retry is Retry.OPERATOR


@pytest.mark.parametrize("version_num", [120_022, 150_018])
def test_a_standby_that_cannot_decode_is_refused_by_its_version(version_num: int) -> None:
    with pytest.raises(StandbyUnusable, match=f"PostgreSQL {version_num // 10_000} "):
        check_version(version_num)


def test_a_standby_of_16_or_later_can_decode() -> None:
    check_version(160_000)


def test_timelines_of_the_same_number_have_to_begin_at_the_same_position() -> None:
    check_history({1: 100, 2: 200}, {1: 100, 2: 200})
    check_history({}, {1: 100, 2: 200})
    check_history({1: 100, 2: 200}, {})
    for other in ({1: 100, 2: 201}, {1: 100}):
        with pytest.raises(StandbyUnusable, match="another history"):
            check_history(other, {1: 100, 2: 200})


def test_a_recovery_conflict_is_tried_again_with_its_own_hint() -> None:
    conflict = SourceUnavailable("canceling statement due to conflict with recovery", sqlstate="40001")
    found = of_standby(conflict)
    assert isinstance(found, StandbyUnavailable)
    assert "hot_standby_feedback" in found.advice
    assert found.context["sqlstate"] == "40001"


@pytest.mark.parametrize(
    ("error", "cls"),
    [
        (SourceUnavailable("refused", hint="correct host and port in source.dsn"), StandbyUnavailable),
        (SourceUnavailable("gone"), StandbyUnavailable),
        (SlotLost("the temporary slot was invalidated"), StandbyUnavailable),
        (SourceAuthentication("wrong password", hint="source.dsn"), StandbyUnavailable),
        (SourceSetup("no such database", hint="name a database in source.dsn"), SourceSetup),
    ],
)
def test_an_error_of_the_connection_names_the_option(error: CdcdError, cls: type[CdcdError]) -> None:
    found = of_standby(error)
    assert type(found) is cls
    assert found.message.startswith("snapshot.from: ")
    assert "source.dsn" not in found.advice


def test_a_missing_file_of_the_standby_is_not_reported_as_one_of_the_slot_on_the_primary() -> None:
    found = of_standby(
        failure_for(ServerReport("58P01", "requested WAL segment 0001 has already been removed"))
    )
    assert type(found) is StandbyUnavailable
    assert found.advice == StandbyUnavailable.hint


@pytest.mark.parametrize(
    "error",
    [
        StandbyUnavailable("snapshot.from: behind"),
        StandbyUnusable("promoted"),
        SnapshotStale("another file", table="s.t"),
        SourceSetup("permission denied", table="s.t"),
    ],
)
def test_other_errors_remain_as_they_are(error: CdcdError) -> None:
    assert of_standby(error) is error
