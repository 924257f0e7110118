"""`snapshot.from`: a DSN beside source.dsn, with the passwords of `source` unless it has its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdcd.config import Config
from cdcd.config.environment import read_variables
from cdcd.config.problems import Origins, lines_of

FROM = "postgresql://cdcd@standby:5433/shop?sslmode=verify-full"


def config(**source: Any) -> Config:
    standby = source.pop("standby", FROM)
    tree: dict[str, Any] = {
        "name": "shop",
        "source": {"dsn": "postgresql://cdcd@primary/shop", **source},
        "sink": {"bootstrap_servers": "kafka:9092"},
        "registry": {"url": "http://registry"},
    }
    return Config(**tree, snapshot={"from": standby})


def password_of(one: Config) -> str | None:
    settings = one.standby_settings()
    assert settings is not None
    return settings.read_password()


def test_without_the_option_there_is_no_standby() -> None:
    assert config(standby=None).standby_settings() is None


def test_the_settings_are_those_of_the_source_with_another_dsn() -> None:
    one = config(slot={"name": "s", "failover": True}, protocol={"two_phase": True})
    standby, source = one.standby_settings(), one.source_settings()
    assert standby is not None
    assert standby.dsn == FROM
    assert (standby.slot, standby.publications) == (source.slot, source.publications)
    assert (standby.option, source.option) == ("snapshot.from", "source.dsn")
    assert not standby.failover  # its slot is a temporary one
    assert not standby.two_phase


@pytest.mark.parametrize(
    ("dsn", "expected"),
    [
        (FROM, "of-the-source"),
        ("host=standby dbname=shop user=cdcd", "of-the-source"),
        ("postgresql://cdcd:its-own@standby/shop", "its-own"),
        ("postgresql://another@standby/shop", None),
        ("postgresql://standby/shop", None),
        ("postgresql://cdcd@standby/shop?passfile=/etc/pgpass", None),
        ("service=standby user=cdcd", None),
    ],
)
def test_the_password_of_the_source_is_used_for_the_same_role(dsn: str, expected: str | None) -> None:
    assert password_of(config(password="of-the-source", standby=dsn)) == expected


def test_the_password_file_is_read_at_each_connection(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("first")
    one = config(password_file=str(file))
    assert password_of(one) == "first"
    file.write_text("second")
    assert password_of(one) == "second"


def test_a_passphrase_of_the_dsn_wins_over_that_of_the_source(tmp_path: Path) -> None:
    file = tmp_path / "passphrase"
    file.write_text("of-the-source")
    own = config(ssl_password_file=str(file), standby=f"{FROM}&sslpassword=own").standby_settings()
    same = config(ssl_password_file=str(file)).standby_settings()
    assert own is not None
    assert same is not None
    assert (own.read_ssl_password(), same.read_ssl_password()) == (None, "of-the-source")


def test_no_password_is_shown() -> None:
    one = config(standby="postgresql://cdcd:canary-5f3a91@standby/shop")
    shown = [repr(one), str(one.model_dump()), one.model_dump_json(), repr(one.standby_settings())]
    assert [text for text in shown if "canary" in text] == []


def test_a_wrong_dsn_is_refused_without_its_text() -> None:
    with pytest.raises(ValueError, match="names no database") as caught:
        config(standby="postgresql://cdcd:canary-5f3a91@standby")
    assert "canary" not in str(caught.value)


def test_a_wrong_value_is_not_shown() -> None:
    with pytest.raises(ValueError) as caught:
        config(standby=4711)
    (line,) = lines_of(caught.value.errors(), Origins("prod.yaml", {}, {}))  # type: ignore[attr-defined]
    assert line.startswith("snapshot.from: ")
    assert "4711" not in line


def test_the_option_has_a_variable() -> None:
    variables = read_variables({"CDCD_SNAPSHOT__FROM": FROM})
    assert variables.problems == []
    assert variables.tree == {"snapshot": {"from": FROM}}
