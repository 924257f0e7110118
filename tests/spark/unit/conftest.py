"""A Kafka without brokers."""

from __future__ import annotations

import pytest

from tests.support.planned import Planned, planned


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Planned:
    """Return a Kafka that the readers of the test use."""
    return planned(monkeypatch)
