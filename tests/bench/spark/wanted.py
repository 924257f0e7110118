"""The target of a measured figure, as text.

In: a figure and its target.  Out: the text for the report.
"""

from __future__ import annotations


def said(measured: float, wanted: float) -> str:
    """Return the target, and whether it is reached."""
    return f"wanted at least {wanted:,.10g}{'' if measured >= wanted else ': not reached'}"


def said_at_most(measured: float, wanted: float) -> str:
    """Return the target of a figure that has to be small, and whether it is reached."""
    return f"wanted at most {wanted:,.10g}{'' if measured <= wanted else ': not reached'}"
