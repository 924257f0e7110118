"""Findings are shown aligned, with hints and a count."""

from __future__ import annotations

import pytest

from cdcd.cli.check import as_text, has_failed, unverified_servers
from cdcd.config import Config
from cdcd.findings import Finding

FINDINGS = [
    Finding("ok", "server", "PostgreSQL 18"),
    Finding("warn", "table public.a", "no key", "ALTER TABLE public.a REPLICA IDENTITY FULL;\nor leave it"),
    Finding("fail", "kafka", "no answer", "start it"),
]


def test_findings_are_aligned_and_each_complaint_has_its_hint() -> None:
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


@pytest.mark.parametrize(
    ("dsn", "standby", "warned"),
    [
        ("postgresql://db/shop", "postgresql://standby/shop", ["source.dsn", "snapshot.from"]),
        ("postgresql://db/shop?sslmode=verify-full", "postgresql://standby/shop", ["snapshot.from"]),
        ("postgresql://localhost/shop", "postgresql://standby/shop?sslmode=verify-ca", []),
        ("postgresql://localhost/shop", None, []),
    ],
)
def test_a_server_whose_certificate_is_not_verified_is_named(
    dsn: str, standby: str | None, warned: list[str]
) -> None:
    config = Config(
        name="shop",
        source={"dsn": dsn},
        sink={"bootstrap_servers": "kafka:9092"},
        registry={"url": "http://registry"},
        snapshot={"from": standby},
    )
    assert [one.subject for one in unverified_servers(config)] == warned
