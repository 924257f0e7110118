"""What several tests of the monitors need."""

from __future__ import annotations

import pytest

from cdcd.monitoring import new_tables as new_tables_module


@pytest.fixture
def complete(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Return the tables of which the stream has every row."""
    tables: set[int] = set()
    monkeypatch.setattr(
        new_tables_module, "with_every_row", lambda _connection, _before, _now, new: tables & set(new)
    )
    return tables
