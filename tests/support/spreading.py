"""Distribute tests over the workers of pytest-xdist: by file, with files that use the same costly servers together.

In: node ids and the text of their files.  Out: the scope of each; one worker runs all tests of a scope in sequence.
The scopes of costly servers come first, because they take the longest.
Why: each Spark session uses all processors and a gigabyte. A broker uses seconds of CPU time to start, and more until
the session ends.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler.loadfile import LoadFileScheduling

WITH_SPARK = ("tests/integration/test_demo_run.py", "tests/spark/")
WITHOUT_JVM = "tests/spark/unit/"
COSTLY = {
    "all servers struck": ("own_registry",),
    "own brokers": ("own_broker", "kafka_cluster"),
    "secured broker": ("secured_kafka", "by_password", "by_certificate"),
}
"""Words in files that use these servers. The first scope with such a word is the scope of the file."""
ORDER = ["spark", *COSTLY, None]


@cache
def costly_scope(file: str, root: Path) -> str | None:
    """Return the scope that this file shares with others, None if the file is a scope of its own."""
    if file.startswith(WITH_SPARK) and not file.startswith(WITHOUT_JVM):
        return "spark"
    text = (root / file).read_text()
    return next((scope for scope, words in COSTLY.items() if any(word in text for word in words)), None)


class ByServers(LoadFileScheduling):  # type: ignore[misc]
    """`--dist loadfile`, with one scope for the files that need the same costly servers."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return costly_scope(file, self.config.rootpath) or file


class Spreading:
    """A plugin for pytest."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Sort the scopes that take longest to the front."""
        items.sort(
            key=lambda item: ORDER.index(costly_scope(item.nodeid.split("::")[0], item.config.rootpath))
        )

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> ByServers | None:
        """Return the scheduler for `--dist loadfile`; leave other distributions unchanged."""
        return ByServers(config, log) if config.getvalue("dist") == "loadfile" else None
