"""Ranges and multiranges, built in or user-defined -> string of the server's text.

In: range_out's text (`[1,5)`, `empty`) or multirange_out's (`{[1,5),[7,)}`).  Out: an Avro string.
Invariant: every bound has the text of its own type, so no bound is special.
"""

from __future__ import annotations

from cdcd.schema.types.text import TEXT_ONLY

KINDS = frozenset("rm")
"""pg_type.typtype of a range and of a multirange."""

CODEC = TEXT_ONLY
"""The codec of every range and multirange."""
