"""The commands that hints name can be typed: each has the configuration file of the process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cdcd.errors import SlotMissing
from cdcd.errors.commands import typeable, use_file
from cdcd.ops import log


@pytest.fixture(autouse=True)
def _without_a_file() -> Iterator[None]:
    yield
    use_file(None)


@pytest.mark.parametrize(
    ("hint", "shown"),
    [
        ("run `cdcd resume`, then wait", "run `cdcd resume --config /etc/c.yaml`, then wait"),
        ("`cdcd check --config FILE`", "`cdcd check --config /etc/c.yaml`"),
        ("`cdcd check --config /other.yaml`", "`cdcd check --config /other.yaml`"),
        (
            "`cdcd resnapshot`, `cdcd snapshot start --table a.b --recopy`",
            "`cdcd resnapshot --config /etc/c.yaml`, `cdcd snapshot start --table a.b --recopy --config /etc/c.yaml`",
        ),
        ("`cdcd config sample`, `cdcd decode --messages`", "`cdcd config sample`, `cdcd decode --messages`"),
        ("cdcd resume, `resume`", "cdcd resume, `resume`"),
        ("", ""),
    ],
)
def test_each_command_has_the_file_once(hint: str, shown: str) -> None:
    use_file("/etc/c.yaml")
    assert typeable(hint) == shown
    assert typeable(shown) == shown


def test_without_a_known_file_its_place_is_shown() -> None:
    assert typeable("`cdcd resume`") == "`cdcd resume --config FILE`"


def test_a_file_with_a_space_is_quoted() -> None:
    use_file("/etc/my shop.yaml")
    assert typeable("`cdcd resume`") == "`cdcd resume --config '/etc/my shop.yaml'`"


def test_errors_and_the_log_name_the_file() -> None:
    use_file("/etc/c.yaml")
    error = SlotMissing("gone", hint="run `cdcd resnapshot`")
    assert str(error).endswith("-> run `cdcd resnapshot --config /etc/c.yaml`")
    assert log.complete_hint(None, "", {"event": "halted", "hint": "`cdcd resume`"})["hint"] == (
        "`cdcd resume --config /etc/c.yaml`"
    )
