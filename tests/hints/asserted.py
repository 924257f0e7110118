"""Check whether a test asserts an error, by its code or its class.

In: the path of a test module, the name of the test, the error's code and class.  Out: True or False.
Invariant: only assertions count, in the test itself or in a function of its module that it calls: an `assert`,
`pytest.raises`, or an argument of a helper that fails without the error (HELPERS).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

HELPERS = frozenset({"raises", "eventually", "halts_with", "halted"})

Function = ast.FunctionDef | ast.AsyncFunctionDef
Functions = dict[str, Function]


def asserts(path: Path, test: str, code: str, cls: str) -> bool:
    """Return whether the test asserts the error."""
    tree = ast.parse(path.read_text(), str(path))
    functions = {node.name: node for node in tree.body if isinstance(node, Function)}
    if test not in functions:
        return False
    return any(
        _names(node, code, cls)
        for function in _called_from(test, functions)
        for node in _asserted(functions[function])
    )


def _called_from(test: str, functions: Functions) -> set[str]:
    """Return the test and the functions of its module that it calls, directly or indirectly."""
    found: set[str] = set()
    waiting = [test]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [called for called in _calls(functions[name]) if called in functions]
    return found


def _calls(function: Function) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and (name := _name_of(node.func)):
            yield name


def _asserted(function: Function) -> Iterator[ast.AST]:
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            yield node.test
        elif isinstance(node, ast.Call) and _name_of(node.func) in HELPERS:
            yield node


def _name_of(called: ast.expr) -> str:
    return called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")


def _names(asserted: ast.AST, code: str, cls: str) -> bool:
    whole = re.compile(rf"{code}(?!-?[A-Z])")
    for node in ast.walk(asserted):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and whole.search(node.value):
            return True
        if cls in (getattr(node, "id", ""), getattr(node, "attr", "")):
            return True
    return False
