"""The modes of `snapshot.mode`, the choices of `snapshot.new_tables` and `snapshot.rewritten_tables`. Pure."""

from __future__ import annotations

from typing import Literal

Mode = Literal["initial", "initial_only", "when_needed", "always", "no_data", "never"]
NewTablesPolicy = Literal["snapshot", "stream_only", "halt"]
RewrittenTablesPolicy = Literal["snapshot", "stream_only"]
COPYING_MODES: frozenset[Mode] = frozenset({"initial", "initial_only", "when_needed", "always"})
"""A first start copies the tables."""
REPEATING_MODES: frozenset[Mode] = frozenset({"when_needed", "always"})
"""cdcd takes a new snapshot by itself where the stream cannot continue."""
