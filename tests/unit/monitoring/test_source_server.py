"""Which server the monitors may query, judge and write to (F59)."""

from __future__ import annotations

import pytest

from cdcd.errors import SourceUnavailable
from cdcd.monitoring.lag import ServerTimeline
from cdcd.monitoring.source_server import SourceServer

FORMER, HERE, PROMOTED, OTHER = (ServerTimeline(*one) for one in (("7", 1), ("7", 2), ("7", 3), ("8", 2)))


def source(*, stored: ServerTimeline | None = None, session: ServerTimeline | None = None) -> SourceServer:
    made = SourceServer()
    made.begins()
    if stored is not None:
        made.stored(stored)
    if session is not None:
        made.decided(session)
    return made


def ended(session: ServerTimeline) -> SourceServer:
    made = source(stored=FORMER, session=session)
    made.ends()
    return made


@pytest.mark.parametrize(
    ("server", "accepted"),
    [
        (source(), {FORMER, HERE, PROMOTED, OTHER}),
        (source(stored=HERE), {HERE, PROMOTED}),
        (source(session=HERE), {HERE}),
        (source(stored=FORMER, session=HERE), {HERE}),
        (source(stored=OTHER, session=HERE), {HERE}),
        (ended(HERE), {HERE, PROMOTED}),
    ],
    ids=[
        "nothing known",
        "stored",
        "first session",
        "promoted",
        "another cluster accepted",
        "between sessions",
    ],
)
def test_the_source_is_the_sessions_server_and_between_sessions_it_or_its_promoted_standby(
    server: SourceServer, accepted: set[ServerTimeline]
) -> None:
    assert {one for one in (FORMER, HERE, PROMOTED, OTHER) if server.is_source(one)} == accepted


def test_the_error_names_both_servers_and_what_to_do() -> None:
    server = source(session=HERE)
    server.check(HERE)
    with pytest.raises(SourceUnavailable) as caught:
        server.check(FORMER)
    assert "system identifier 7 on timeline 1, not system identifier 7 on timeline 2" in caught.value.message
    assert "fence a former primary" in caught.value.advice
