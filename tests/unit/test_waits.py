"""The table of waits, and the text of a wait."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from cdcd.waits import KINDS, MOST_BLOCKERS, Blocker, Wait, WaitKind, held_by

PAGE = Path(__file__).parents[2] / "docs" / "monitoring.md"
PID = Blocker("pid 7", "idle in transaction", 7, "shop", "app", "nightly", 1_700_000_000.0)


def test_every_kind_is_in_the_table_and_in_the_docs() -> None:
    assert tuple(KINDS) == get_args(WaitKind)
    rows = PAGE.read_text().partition("## Waits")[2].partition("\n## ")[0].splitlines()
    named = [row.split("|")[1].strip(" `") for row in rows if row.startswith("| `")]
    assert named == ["kind", *KINDS]
    assert all(rule.waits_for and rule.ends_when for rule in KINDS.values())


def test_a_blocker_is_named_with_all_that_is_known_of_it() -> None:
    assert (
        str(PID) == "pid 7 of app in database shop (nightly), idle in transaction, since 2023-11-14T22:13:20Z"
    )
    assert PID.page() == {
        "who": "pid 7",
        "pid": 7,
        "database": "shop",
        "user": "app",
        "application": "nightly",
        "doing": "idle in transaction",
        "since": "2023-11-14T22:13:20Z",
    }


def test_what_is_not_known_of_a_blocker_is_not_there() -> None:
    assert str(Blocker("pid 7", pid=7)) == "pid 7"
    assert Blocker("pid 7", pid=7).page() == {"who": "pid 7", "pid": 7}


def test_an_application_name_cannot_forge_a_line() -> None:
    """Any client chooses its own application name."""
    forged = Blocker("pid 7", application='x\n{"event": "halted"}\x1b[2J' + "y" * 5000)
    assert str(forged).isprintable()
    assert len(str(forged)) < 300
    assert all(str(value).isprintable() for value in forged.page().values())


def test_the_first_of_many_are_shown_and_the_others_counted() -> None:
    many = tuple(Blocker(f"pid {number}") for number in range(MOST_BLOCKERS + 5))
    assert held_by(many).endswith("; and 5 more")
    page = Wait("slot_creation", "slot s", 0.0, many).page(60.0)
    assert (len(page["blockers"]), page["more_blockers"], page["seconds"]) == (MOST_BLOCKERS, 5, 60.0)
    assert held_by(()) == "not known"
