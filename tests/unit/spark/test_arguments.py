"""The command line of `python -m cdcd.spark`: each misuse is one clear error, before Spark starts."""

from __future__ import annotations

import pytest

from cdcd.spark.commands.arguments import connection_options, parse, trigger_of

READ = ["read", "--table", "public.items"]
OUTPUT = [*READ, "--output", "/data/items"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "arguments are required: COMMAND"),
        (["write"], "invalid choice: 'write'"),
        (["read"], "arguments are required: --table"),
        (["mirror"], "arguments are required: --target"),
        (
            [*READ, "--starting", "monday"],
            "argument --starting: has to be earliest, latest, snapshot_end, an LSN",
        ),
        ([*READ, "--ending", "earliest"], "argument --ending: has to be latest, snapshot_end, an LSN"),
        ([*READ, "--starting", '{"shop.public.items": {"0": -1}}'], "argument --starting: has to be"),
        ([*READ, "--show", "0"], "argument --show: has to be a whole number from 1"),
        ([*READ, "--format", "csv"], "argument --format: invalid choice: 'csv'"),
        ([*READ, "--format", "json"], "read: --format needs --output"),
        ([*READ, "--checkpoint", "/data/position"], "read: --checkpoint needs --output"),
        ([*READ, "--available-now"], "read: --available-now needs --output"),
        ([*READ, "--trigger-ms", "5"], "read: --trigger-ms needs --output"),
        (OUTPUT, "read: --output needs --checkpoint"),
        ([*OUTPUT, "--show", "1"], "argument --show: not allowed with argument --output"),
        ([*OUTPUT, "--checkpoint", "c", "--ending", "latest"], "read: --ending is for --show"),
        ([*OUTPUT, "--checkpoint", "c", "--available-now", "--trigger-ms", "5"], "not allowed with argument"),
        (["mirror", "--target", "t", "--registry", "r", "--schemas", "s"], "not allowed with argument"),
    ],
)
def test_a_misuse_is_one_error(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(words)
    assert ended.value.code == 2
    assert expected in capsys.readouterr().err.splitlines()[-1]


def test_an_option_without_a_name_is_refused_without_its_value(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse([*READ, "--option", "topsecret"])
    error = capsys.readouterr().err
    assert "argument --option: has to be NAME=VALUE" in error
    assert "topsecret" not in error


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ("earliest", "startingOffsets"),
        ("snapshot_end", "startingOffsets"),
        ('{"shop.public.items": {"0": 5}}', "startingOffsets"),
        ("16/B374D848", "startingLsn"),
        ("2026-11-26T12:00:00+01:00", "startingTimestamp"),
        ("1764158400000", "startingTimestamp"),
    ],
)
def test_a_position_is_the_option_of_its_kind(text: str, option: str) -> None:
    assert parse([*READ, "--starting", text]).starting == (option, text)


def test_the_arguments_of_a_connection_are_the_same_for_all_commands() -> None:
    words = [
        "--config",
        "c",
        "--brokers",
        "b",
        "--prefix",
        "p",
        "--schemas",
        "s",
        "--option",
        "kafka.client.id=a=b",
    ]
    expected = {"config": "c", "brokers": "b", "prefix": "p", "registry": "s", "kafka.client.id": "a=b"}
    for command in (READ, ["mirror", "--target", "t"]):
        assert connection_options(parse([*command, *words])) == expected


def test_the_trigger_is_that_of_the_mirror() -> None:
    command = ["mirror", "--target", "t"]
    assert trigger_of(parse(command)) == "2000 milliseconds"
    assert trigger_of(parse([*command, "--trigger-ms", "5"])) == "5 milliseconds"
    assert trigger_of(parse([*command, "--available-now"])) == "available_now"
