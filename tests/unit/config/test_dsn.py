"""The DSN is parsed as libpq parses it; the tests compare with libpq itself."""

from __future__ import annotations

import pytest
from psycopg2.extensions import parse_dsn
from pydantic import TypeAdapter, ValidationError

from cdcd.config.dsn import Dsn

GOOD = [
    "postgresql://cdcd@db:5432/shop?sslmode=verify-full&sslrootcert=/etc/ca.crt",
    "postgres://db/shop",
    "postgresql:///shop?host=/run/postgresql&port=5433",
    "postgresql://u%40x:p%2Fw%3A@[2001:db8::1]:5432/sh%20op",
    "postgresql://u@a:1,b:2/shop?target_session_attrs=read-write",
    "postgresql://u@a,b:2/shop",
    "postgresql://u@%2Frun%2Fpostgresql/shop",
    "postgresql://db/shop?user=u&password=p%26w&application_name=a+b",
    "host=db dbname=shop user=cdcd",
    "host = 'db' dbname='my shop' password='it\\'s \\\\ here'",
    "  dbname=shop   password=a\\ b  ",
    "host=db dbname=shop password=a://b:c@d",
    "application_name='x://y' dbname=shop",
    "dbname=shop options='-c geqo=off -c x=''",
]


@pytest.mark.parametrize("text", GOOD[:-1])
def test_text_is_the_same_connection_without_its_password(text: str) -> None:
    expected = parse_dsn(text)
    password = expected.pop("password", None)
    dsn = Dsn(text)
    assert parse_dsn(dsn.text) == expected
    assert (dsn.password.reveal() if dsn.password else None) == password
    assert {key: value for key, value in dsn.parameters.items() if value} == expected


@pytest.mark.parametrize(
    "text",
    [
        GOOD[-1],
        "postgresql://u:hunter2@x@db/shop",
        "postgresql://u:hun/ter2@db/shop",
        "postgresql://u:hun?ter2@db/shop",
        "postgresql://u:hunter2@db:port/shop",
        "postgresql://u:hunter2@db:0/shop",
        "postgresql://u:hunter2@[::1/shop",
        "postgresql://u:hunter2@db/shop?replication=database",
        "postgresql://u:hunter2@db/",
        "host=db password=hunter2",
        "host=db dbname=shop password=hunter2'",
        "hunter2",
        "POSTGRESQL://u:hunter2@db/shop",
        "mysql://u:hunter2@db/shop",
        "",
    ],
)
def test_what_is_refused_is_never_repeated(text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(Dsn).validate_python(text)
    messages = " ".join(error["msg"] for error in caught.value.errors())
    assert "hunter2" not in messages
    assert "ter2" not in messages


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://u:hunter2@db/shop",
        "postgresql://db/shop?password=hunter2",
        "postgresql://db/shop?sslkey=/k&sslpassword=hunter2",
        "dbname=shop password=hunter2 sslpassword='hunter2'",
        "dbname=shop scram_client_key=hunter2",
        "postgresql://db/shop?oauth_client_secret=hunter2",
        "postgresql://db/shop?options=-c%20app.key%3Dhunter2",
        "dbname=shop passwd=hunter2 PASSWORD=hunter2",
    ],
)
def test_a_dsn_shows_itself_without_its_secrets(text: str) -> None:
    shown = f"{Dsn(text)} {Dsn(text)!r}"
    assert "hunter2" not in shown
    assert "***" in shown
    assert "shop" in shown
