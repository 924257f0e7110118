"""Distribute tests over the workers of pytest-xdist: by file, with files that use the same costly servers together.

In: node ids and the text of their files.  Out: the scope of each; one worker runs all tests of a scope in sequence.
The scopes of costly servers come first, because they take the longest. The worker that has Spark's tests has
precedence: the others leave it the processors.
Why: each Spark session uses all processors and a gigabyte. A broker uses seconds of CPU time to start, and more until
the session ends.
"""

from __future__ import annotations

import ast
import os
import re
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler.loadfile import LoadFileScheduling

WITH_SPARK = ("tests/spark/", "tests/faults/test_fault_02_snapshot_kills.py")
STARTS_SPARK = frozenset({"spark", "command"})
"""Fixtures of these files. A test without them runs on any worker: the scope of Spark takes longest."""
DEMO = "tests/integration/test_demo_run.py"
"""It starts all servers and a Spark of its own."""
COSTLY = {
    "all servers struck": ("own_registry",),
    "own brokers": ("own_broker", "kafka_cluster"),
    "secured broker": ("secured_kafka", "by_password", "by_certificate"),
}
"""Words in files that use these servers. The first scope with such a word is the scope of the file."""
ORDER = ["spark", "demo", *COSTLY, None]
LATER_NICENESS = 5
"""Of the workers that have no test of Spark first. The last test of Spark's is the last of all."""


@cache
def costly_servers(file: Path) -> frozenset[str]:
    """Return the keys of `COSTLY` whose servers this file may use."""
    text = file.read_text()
    return frozenset(name for name, words in COSTLY.items() if any(word in text for word in words))


@cache
def with_spark(file: Path) -> frozenset[str]:
    """Return the tests and fixtures of a file that have one of `STARTS_SPARK`, or name it in a text."""
    text = file.read_text()
    if not any(word in text for word in STARTS_SPARK):
        return frozenset()
    functions = {one.name: _names(one, text) for one in ast.parse(text).body if isinstance(one, _DEF)}
    found = STARTS_SPARK
    while more := {name for name, used in functions.items() if used & found} - found:
        found |= more
    return found & functions.keys()


_DEF = (ast.FunctionDef, ast.AsyncFunctionDef)
_TEXT = re.compile(r'"(\w+)"')


def _names(function: ast.FunctionDef | ast.AsyncFunctionDef, text: str) -> set[str]:
    """Return the parameters, and the texts: `getfixturevalue` and `usefixtures` have names of fixtures in texts.

    By a pattern: each worker does this for all files, and a walk through their syntax trees takes seconds.
    """
    first = min(one.lineno for one in (function, *function.decorator_list))
    lines = _lines(text)[first - 1 : function.end_lineno]
    parameters = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    return {one.arg for one in parameters}.union(*(_TEXT.findall(line) for line in lines))


@lru_cache(maxsize=1)
def _lines(text: str) -> list[str]:
    return text.splitlines()


@cache
def costly_scope(nodeid: str, root: Path) -> str | None:
    """Return the scope that this test shares with other files, None if its file is a scope of its own.

    Of a file with both, the tests that need no Spark are such a file; with costly servers they stay, for one start.
    """
    file, _, test = nodeid.partition("::")
    if file == DEMO:
        return "demo"
    servers = costly_servers(root / file)
    if file.startswith(WITH_SPARK):
        users = with_spark(root / file)
        if test.partition("[")[0] in users or (servers and users):
            return "spark"
    return next((scope for scope in COSTLY if scope in servers), None)


class ByServers(LoadFileScheduling):  # type: ignore[misc]
    """`--dist loadfile`, with one scope for the tests that need the same costly servers."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return costly_scope(nodeid, self.config.rootpath) or file


class Spreading:
    """A plugin for pytest."""

    def __init__(self) -> None:
        self._is_placed = False

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Sort the scopes that take longest to the front. A test outside of its scope would start a second Spark."""
        for item in items:
            if "spark" in getattr(item, "fixturenames", ()):
                assert _scope(item) == "spark", (
                    f"{item.nodeid} starts Spark, by no fixture that its file names"
                )
        items.sort(key=lambda item: ORDER.index(_scope(item)))

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Give way to the worker with Spark's tests: with two processors the run ends with its last test."""
        if not self._is_placed and hasattr(item.config, "workerinput") and _scope(item) != "spark":
            os.nice(LATER_NICENESS)
        self._is_placed = True

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> ByServers | None:
        """Return the scheduler for `--dist loadfile`; leave other distributions unchanged."""
        return ByServers(config, log) if config.getvalue("dist") == "loadfile" else None


def _scope(item: pytest.Item) -> str | None:
    return costly_scope(item.nodeid, item.config.rootpath)
