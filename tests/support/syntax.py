"""The syntax tree of Python's text.

In: a text.  Out: its tree.
Invariant: no garbage is collected meanwhile. A finaliser that runs inside of the parser of Python 3.11 changes the
depth that the parser compares, and it raises SystemError ("AST constructor recursion depth mismatch").
"""

from __future__ import annotations

import ast
import gc


def syntax_tree(text: str, file: str = "<text>") -> ast.Module:
    """Return the tree. Raises SyntaxError."""
    is_on = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(text, file)
    finally:
        if is_on:
            gc.enable()
