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

WITH_SPARK = "tests/spark/"
JVM = "SparkSession"
"""A word in each file of that folder that starts Spark. The others run on any worker: this scope takes longest."""
DEMO = "tests/integration/test_demo_run.py"
"""It starts all servers and a Spark of its own."""
COSTLY = {
    "all servers struck": ("own_registry",),
    "own brokers": ("own_broker", "kafka_cluster"),
    "secured broker": ("secured_kafka", "by_password", "by_certificate"),
}
"""Words in files that use these servers. The first scope with such a word is the scope of the file."""
ORDER = ["spark", "demo", *COSTLY, None]


@cache
def costly_servers(file: Path) -> frozenset[str]:
    """Return the keys of `COSTLY` whose servers this file may use."""
    text = file.read_text()
    return frozenset(name for name, words in COSTLY.items() if any(word in text for word in words))


@cache
def costly_scope(file: str, root: Path) -> str | None:
    """Return the scope that this file shares with others, None if the file is a scope of its own."""
    if file == DEMO:
        return "demo"
    servers = costly_servers(root / file)
    # With a broker of its own, too: those scopes come first, and later tests of the same worker count its threads.
    if file.startswith(WITH_SPARK) and (servers or JVM in (root / file).read_text()):
        return "spark"
    return next((scope for scope in COSTLY if scope in servers), None)


class ByServers(LoadFileScheduling):  # type: ignore[misc]
    """`--dist loadfile`, with one scope for the files that need the same costly servers."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return costly_scope(file, self.config.rootpath) or file


class Spreading:
    """A plugin for pytest."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Sort the scopes that take longest to the front. A test outside of its scope would start a second Spark."""
        for item in items:
            if "spark" in getattr(item, "fixturenames", ()):
                file = item.nodeid.split("::")[0]
                assert costly_scope(file, item.config.rootpath) == "spark", f"{file} has no word {JVM}"
        items.sort(
            key=lambda item: ORDER.index(costly_scope(item.nodeid.split("::")[0], item.config.rootpath))
        )

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> ByServers | None:
        """Return the scheduler for `--dist loadfile`; leave other distributions unchanged."""
        return ByServers(config, log) if config.getvalue("dist") == "loadfile" else None
