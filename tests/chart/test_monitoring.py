"""The dashboard and the alerts of the chart use metrics that the daemon and the mirror have."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.shown_metrics import unknown_metrics, used_metrics

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "cdcd"
DASHBOARD = CHART / "dashboards" / "cdcd.json"
RULE = CHART / "templates" / "prometheusrule.yaml"


@pytest.mark.parametrize(
    "path", [DASHBOARD, RULE, ROOT / "docs" / "monitoring.md"], ids=lambda path: path.name
)
def test_each_metric_exists(path: Path) -> None:
    assert len(used_metrics(path.read_text())) >= 3
    assert unknown_metrics(path.read_text()) == set()


def test_a_metric_that_nobody_has_is_found() -> None:
    text = "rate(cdcd_mirror_rows_total[5m]) + cdcd_mirror_lag_seconds + cdcd_mirror_lag_seconds_bucket"
    assert unknown_metrics(text) == {"cdcd_mirror_rows_total", "cdcd_mirror_lag_seconds_bucket"}


def _panels() -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return panels


def test_the_dashboard_is_one_of_daemon_and_mirror() -> None:
    panels = _panels()
    assert len({panel["id"] for panel in panels}) == len(panels)
    shown = [panel for panel in panels if panel["type"] != "row"]
    assert len(panels) == len(shown) + 2
    queries = [target["expr"] for panel in shown for target in panel["targets"]]
    assert all('namespace=~"$namespace"' in query for query in queries)
    assert all(panel["description"].endswith(".") and panel["targets"] for panel in shown)
    assert {"cdcd_replication_lag_seconds", "cdcd_mirror_lag_seconds"} <= used_metrics(" ".join(queries))


def test_there_are_four_alerts_with_what_to_do() -> None:
    text = re.sub(r"\{\{-? \$job -?\}\}", 'job="j"', RULE.read_text())
    text = re.sub(r"\{\{.*?\}\}", "0", re.sub(r"^\s*\{\{-.*\}\}$", "", text, flags=re.M))
    (group,) = yaml.safe_load(text)["spec"]["groups"]
    assert [rule["alert"] for rule in group["rules"]] == [
        "CdcdMirrorBehind",
        "CdcdMirrorUnknown",
        "CdcdMirrorKilled",
        "CdcdMirrorTableParked",
    ]
    for rule in group["rules"]:
        assert rule["annotations"].keys() == {"summary", "description"}
        assert rule["labels"]["severity"] in ("warning", "critical")
