"""How tests are spread over pytest's workers: by file, and the files that need the same costly servers on one worker.

In: node ids, and what their files say.  Out: the scope of each; what has one scope runs on one worker, one after
another. The scopes of costly servers come first: they take longest as a whole.
Why: each Spark wants all processors and a gigabyte. A broker takes seconds of a processor to start, and then takes
some until the session ends.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler.loadfile import LoadFileScheduling

WITH_SPARK = ("tests/integration/test_demo_run.py", "tests/spark/")
COSTLY = {
    "all servers struck": ("own_registry",),
    "own brokers": ("own_broker", "kafka_cluster"),
    "secured broker": ("secured_kafka", "by_password", "by_certificate"),
}
"""What a file says that needs these servers. The first that fits is its scope."""
ORDER = ["spark", *COSTLY, None]


@cache
def costly_scope(file: str, root: Path) -> str | None:
    """The scope that this file shares with others, None where it is one of its own."""
    if file.startswith(WITH_SPARK):
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
        """What takes longest as a whole comes first."""
        items.sort(
            key=lambda item: ORDER.index(costly_scope(item.nodeid.split("::")[0], item.config.rootpath))
        )

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> ByServers | None:
        """Another way of spreading that somebody asks for is left as it is."""
        return ByServers(config, log) if config.getvalue("dist") == "loadfile" else None
