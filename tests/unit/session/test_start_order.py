"""F79: steps that only read and may refuse precede steps that change something; the docs show the same order."""

from __future__ import annotations

from pathlib import Path

from cdcd.session.start_checks.checks import START_CHECKS
from tests.docs.start_order import ORDER, draw

DOCS = Path(__file__).parents[3] / "docs" / "recovery.md"


def test_what_reads_and_may_refuse_comes_before_what_changes() -> None:
    kinds = [step.kind for step in ORDER]
    first_change = kinds.index("changes")
    assert set(kinds[:first_change]) == {"reads"}
    assert "reads" not in kinds[first_change:]
    assert all(step.refuses for step in ORDER[:first_change])
    later = [step.name for step in ORDER[first_change:] if step.refuses]
    assert later == ["read again"], "another daemon may have written until the fence, so this is read again"


def test_the_start_checks_are_the_reading_steps_of_the_order() -> None:
    """The start lock is not a check: `cdcd check` next to a running daemon does not take it."""
    reading = [step.name for step in ORDER if step.kind == "reads"]
    assert reading == ["start lock", *(look.name for look in START_CHECKS)]


def test_a_check_needs_only_earlier_checks() -> None:
    seen: set[str] = set()
    for look in START_CHECKS:
        assert seen.issuperset(look.needs), look.name
        seen.add(look.name)


def test_the_docs_show_the_order() -> None:
    assert "\n".join(draw()) in DOCS.read_text()
