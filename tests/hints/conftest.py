"""Situations use the same daemon fixture as the integration tests."""

from tests.integration.conftest import new_daemon

__all__ = ["new_daemon"]
