"""Situations are played with daemons as the integration tests have them."""

from tests.integration.conftest import new_daemon

__all__ = ["new_daemon"]
