"""The host names that the admin port answers to: those that probes send, and none that an attacker can own."""

from __future__ import annotations

import socket

import pytest

from cdcd.host_names import HostNames


@pytest.mark.parametrize(
    ("headers", "is_answered"),
    [
        ([], True),  # HTTP/1.0: HAProxy's health check; no browser
        (["10.1.2.3:8080"], True),  # Kubernetes' probes and Prometheus: the pod's address
        (["127.0.0.1"], True),
        (["[::1]:8080"], True),
        (["[fd00::1]"], True),
        (["localhost:8080"], True),
        (["LocalHost."], True),
        (["grafana.localhost"], True),
        (["cdcd:8080"], True),  # Docker Compose: a name without a dot
        (["cdcd.shop.svc:8080"], True),
        (["cdcd.shop.svc.cluster.local"], True),
        (["cdcd.example.com:8080"], True),  # configured
        (["CDCD.example.com."], True),
        ([socket.gethostname()], True),
        (["evil.example"], False),
        (["evil.example:8080"], False),
        (["127.0.0.1.evil.example"], False),
        (["localhost.evil.example"], False),
        (["cdcd.example.com.evil.example"], False),
        (["xcdcd.example.com"], False),
        (["svc.evil.example"], False),
        (["127.0.0.1", "evil.example"], False),
        (["evil.example@127.0.0.1"], False),
        (["127.0.0.1:8080:1"], False),
        (["[::1]evil.example"], False),
        (["evil.example\x00.svc"], False),
        (["ev\u0131l.svc"], False),
        ([""], False),
        (["a" * 10_000], False),
    ],
)
def test_which_names_are_answered(headers: list[str], is_answered: bool) -> None:
    assert HostNames(["cdcd.example.com"]).has(headers) is is_answered
