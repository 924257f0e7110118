"""The fault tests run daemons as the integration tests do."""

from __future__ import annotations

from tests.integration.conftest import new_daemon, reader

__all__ = ["new_daemon", "reader"]
