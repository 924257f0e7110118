"""No client of librdkafka writes to stderr by itself: each has a logger, or `log_level` 0."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.syntax import syntax_tree

PACKAGE = Path(__file__).parents[2] / "cdcd"
CLIENTS = {"AdminClient", "Consumer", "DeserializingConsumer", "Producer", "SerializingProducer"}


def made(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if name in CLIENTS:
                yield node


def is_quiet(call: ast.Call) -> bool:
    """Return whether the call has a logger, or `log_level` 0 in a literal of its settings."""
    if any(one.arg == "logger" for one in call.keywords):
        return True
    return any(
        isinstance(key, ast.Constant) and key.value == "log_level" and getattr(value, "value", None) == 0
        for argument in call.args
        if isinstance(argument, ast.Dict)
        for key, value in zip(argument.keys, argument.values, strict=True)
    )


def test_every_client_of_the_product_is_quiet() -> None:
    texts = {path: path.read_text() for path in PACKAGE.rglob("*.py")}
    found = [
        (f"{path.relative_to(PACKAGE)}:{call.lineno}", is_quiet(call))
        for path, text in texts.items()
        if any(f"{name}(" in text for name in CLIENTS)
        for call in made(syntax_tree(text))
    ]
    assert [where for where, quiet in found if not quiet] == []
    assert ("sink", True) in {(where.split("/")[0], quiet) for where, quiet in found}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Producer(p, logger=LOG)", True),
        ("kafka.Consumer({'log_level': 0, **p})", True),
        ("AdminClient({'log_level': 6})", False),
        ("AdminClient(p)", False),
    ],
)
def test_what_is_quiet(text: str, expected: bool) -> None:
    (call,) = made(syntax_tree(text))
    assert is_quiet(call) is expected
