"""How tests are spread over pytest's workers: by file, and all that runs Spark on one worker, which begins with it.

In: node ids.  Out: the scope of each; what has one scope runs on one worker, one after another.
Why: each Spark wants all processors and a gigabyte. Four at once, beside four brokers and four registries, take so
long on two processors that what waits for them gives up.
"""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler.loadfile import LoadFileScheduling

WITH_SPARK = ("tests/integration/test_demo_run.py", "tests/spark/")


class OneSpark(LoadFileScheduling):
    """`--dist loadfile`, with one scope for the files that run Spark."""

    def _split_scope(self, nodeid: str) -> str:
        return "spark" if nodeid.startswith(WITH_SPARK) else super()._split_scope(nodeid)


class Spreading:
    """A plugin for pytest."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """What takes longest as a whole comes first."""
        items.sort(key=lambda item: not item.nodeid.startswith(WITH_SPARK))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> OneSpark | None:
        """Another way of spreading that somebody asks for is left as it is."""
        return OneSpark(config, log) if config.getvalue("dist") == "loadfile" else None
