"""What is wanted of a figure, beside what was measured."""

from __future__ import annotations


def said(measured: float, wanted: float) -> str:
    """Return the target, and whether it is reached."""
    return f"wanted at least {wanted:,.10g}{'' if measured >= wanted else ': not reached'}"
