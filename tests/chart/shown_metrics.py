"""The metrics that the chart's dashboard and alerts use, compared with those that the code has.

In: a text with queries.  Out: names of metrics in it that neither the daemon nor the mirror has.
"""

from __future__ import annotations

import re

from cdcd.metrics.group import Described
from cdcd.ops.metrics import Metrics
from cdcd.spark.mirroring.metrics import MirrorMetrics

_NAME = re.compile(r"\bcdcd_[a-z0-9_]+\b")
_OF_HISTOGRAM = re.compile(r"_(bucket|count|sum)$")


def used_metrics(text: str) -> set[str]:
    """Return the names of metrics in a text."""
    return {name for name in _NAME.findall(text) if name.count("_") > 1}


def unknown_metrics(text: str) -> set[str]:
    """Return the names of metrics in a text that the code does not have."""
    groups = [*Metrics("", with_process=False).groups, *MirrorMetrics(with_process=False).groups]
    known = {one.name: one for group in groups for one in group.metrics}
    return {name for name in used_metrics(text) if not _is_known(name, known)}


def _is_known(name: str, known: dict[str, Described]) -> bool:
    of_histogram = known.get(_OF_HISTOGRAM.sub("", name))
    return name in known or (of_histogram is not None and of_histogram.kind == "histogram")
