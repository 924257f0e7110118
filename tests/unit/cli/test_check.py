"""Findings are shown aligned, with hints and a count."""

from __future__ import annotations

from cdcd.cli.check import as_text, has_failed
from cdcd.findings import Finding

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
