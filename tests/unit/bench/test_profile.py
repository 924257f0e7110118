"""The report of a profile."""

from __future__ import annotations

from tests.bench.profile import top


def test_functions_are_listed_alone_and_with_their_callees_and_threads_by_name() -> None:
    stacks = [
        "thread (1): main;run;drain 30",
        "thread (1): main;run;drain;cut 50",
        "thread (2): commit;cut 10",
        "thread (3): commit 10",
    ]
    threads, _, functions = top(stacks).partition("functions including their callees:")
    with_called, _, alone = functions.partition("functions alone:")
    assert threads.split() == ["threads:", "80.0%", "main", "20.0%", "commit"]
    assert "80.0%  run" in with_called
    assert "80.0%  drain" in with_called
    assert "60.0%  cut" in alone
    assert "30.0%  drain" in alone
    assert "run" not in alone
