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
DAEMON_RULES = CHART / "alerts" / "daemon.yaml"
MONITORING = ROOT / "docs" / "monitoring.md"


@pytest.mark.parametrize("path", [DASHBOARD, RULE, DAEMON_RULES, MONITORING], ids=lambda path: path.name)
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


def test_there_are_four_alerts_about_the_mirror_with_what_to_do() -> None:
    of_the_mirror = RULE.read_text().partition("---\n")[2]
    text = re.sub(r"\{\{-? \$job -?\}\}", 'job="j"', of_the_mirror)
    text = re.sub(r"\{\{.*?\}\}", "0", re.sub(r"^\s*\{\{-.*\}\}$", "", text, flags=re.M))
    (group,) = yaml.safe_load(text)["spec"]["groups"]
    assert [rule["alert"] for rule in group["rules"]] == [
        "CdcdMirrorBehind",
        "CdcdMirrorUnknown",
        "CdcdMirrorKilled",
        "CdcdMirrorTableParked",
    ]
    assert_complete(group["rules"])


def assert_complete(rules: list[dict[str, Any]]) -> None:
    for rule in rules:
        assert rule["annotations"].keys() == {"summary", "description"}
        assert rule["labels"]["severity"] in ("warning", "critical")


def test_the_alerts_about_the_daemon_are_those_of_the_documents() -> None:
    (group,) = yaml.safe_load(DAEMON_RULES.read_text())["groups"]
    assert_complete(group["rules"])
    assert len({rule["alert"] for rule in group["rules"]}) == len(group["rules"])
    table = (
        MONITORING.read_text()
        .partition("| alert | expression | for |\n|---|---|---|\n")[2]
        .partition("\n\n")[0]
    )
    documented = [
        (expression, row[3].strip())
        for row in (re.split(r"(?<!\\)\|", line) for line in table.splitlines())
        for expression in re.findall(r"`([^`]*)`", row[2])
        if re.search(r"[<>=]| unless ", expression)
    ]
    assert [(rule["expr"], rule["for"]) for rule in group["rules"]] == documented
