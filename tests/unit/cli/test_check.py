"""Findings are shown aligned, with hints and a count."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cdcd.cli import main
from cdcd.cli.check import as_text, check, has_failed
from cdcd.config import load_config
from cdcd.findings import Finding
from tests.unit.config.cases import GOOD

FINDINGS = [
    Finding("ok", "server", "PostgreSQL 18"),
    Finding("warn", "table public.a", "no key", "ALTER TABLE public.a REPLICA IDENTITY FULL;\nor leave it"),
    Finding("fail", "kafka", "no answer", "start it"),
]


def test_findings_are_aligned_and_each_complaint_says_what_mends_it() -> None:
    assert as_text(FINDINGS).splitlines() == [
        "ok    server          PostgreSQL 18",
        "warn  table public.a  no key",
        "                      -> ALTER TABLE public.a REPLICA IDENTITY FULL;",
        "                      -> or leave it",
        "fail  kafka           no answer",
        "                      -> start it",
        "1 ok, 1 warn, 1 fail",
    ]


def test_only_a_fail_fails() -> None:
    assert has_failed(FINDINGS)
    assert not has_failed(FINDINGS[:2])


def test_every_endpoint_is_tried_though_none_answers(tmp_path: Path) -> None:
    path = tmp_path / "prod.yaml"
    # port 1 is closed on every machine that runs tests
    text = GOOD.replace("db.example.com", "127.0.0.1:1").replace("kafka:9092", "127.0.0.1:1")
    path.write_text(text.replace("registry:8081", "127.0.0.1:1"))
    findings = check(load_config(path, {}))
    failed = [finding.subject for finding in findings if finding.level == "fail"]
    assert failed == ["source connection", "kafka", "registry"]


def test_the_json_of_a_check_is_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line break between the parts stays a line break; one inside a name is escaped in the JSON."""
    path = tmp_path / "prod.yaml"
    text = GOOD.replace("db.example.com", "127.0.0.1:1").replace("kafka:9092", "127.0.0.1:1")
    path.write_text(text.replace("registry:8081", "127.0.0.1:1"))
    assert main(["check", "--json", "--config", str(path)]) == 1
    found = json.loads(capsys.readouterr().out)
    assert {"source connection", "kafka", "registry"} <= {one["subject"] for one in found}
