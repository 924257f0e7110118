"""Each block of docs/recipes.md runs, in the order of the page, on a mirror of two tables."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import duckdb
import pytest
import yaml
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from cdcd.errors import EXIT_OK
from cdcd.lsn import format_lsn
from cdcd.spark.__main__ import main
from cdcd.spark.data_source import register
from cdcd.spark.reading.mirror import read_mirror
from tests.spark.conftest import Command
from tests.spark.events import column
from tests.spark.topics import TopicsWriter
from tests.support.pages import ROOT, Block, blocks

PAGE = ROOT / "docs" / "recipes.md"
PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}
CUSTOMER_ID = column("customer_id", "int", required=True)
CUSTOMERS = [CUSTOMER_ID, column("name", "string")]
ORDERS = [column("id", "int", required=True), column("customer_id", "int"), column("total", PRICE)]
NAMES = {1: "Ada", 2: "Grace"}
LAST_LSN = 40


def order(number: int, customer: int, total: int) -> dict[str, Any]:
    return {"id": number, "customer_id": customer, "total": (100 * total).to_bytes(4, "big", signed=True)}


def write(topics: TopicsWriter) -> None:
    """Write two customers; three orders, of which one changes and one is deleted."""
    customers = topics.table("customers", CUSTOMERS, key=("customer_id",))
    orders = topics.table("orders", ORDERS)
    rows = [{"customer_id": number, "name": name} for number, name in NAMES.items()]
    copied = [topics.change(customers, "r", 10, place, after=one) for place, one in enumerate(rows, 1)]
    placed = [order(1, 1, 10), order(2, 2, 20), order(3, 2, 30)]
    copied += [topics.change(orders, "r", 10, place, after=one) for place, one in enumerate(placed, 3)]
    topics.commit(10, [one for each in copied for one in each])
    topics.commit(20, topics.change(orders, "u", 20, 1, after=order(1, 1, 15)))
    topics.commit(30, topics.change(orders, "d", 30, 1, before=order(3, 2, 30)))
    topics.commit(LAST_LSN, topics.change(orders, "c", LAST_LSN, 1, after=order(4, 1, 5)))
    topics.wait_until_visible()


def configure(topics: TopicsWriter, folder: Path) -> str:
    """Write the daemon's configuration; return its path."""
    tree = {
        "name": topics.prefix,
        "source": {"dsn": "postgresql://cdcd@db/shop", "password_file": "/nowhere/postgres"},
        "sink": {"bootstrap_servers": topics.bootstrap},
        "registry": {"url": topics.registry_url},
    }
    path = folder / "cdcd.yaml"
    path.write_text(yaml.safe_dump(tree))
    return str(path)


class Page:
    """Runs the blocks of the page, with the paths and the names of the test in place of the page's."""

    def __init__(
        self, spark: SparkSession, command: Command, capsys: pytest.CaptureFixture[str], here: dict[str, str]
    ) -> None:
        self._command, self._capsys, self._here = command, capsys, here
        self._names: dict[str, Any] = {"spark": spark}

    def run(self, block: Block) -> str:
        """Run a block; return what it prints."""
        text = block.text
        for old, new in self._here.items():
            text = text.replace(old, new)
        if block.language == "python":
            exec(text, self._names)
        else:
            assert block.language == "sh", block
            for line in text.splitlines():
                self._line(shlex.split(line))
        return self._capsys.readouterr().out

    def _line(self, words: list[str]) -> None:
        if words[:3] != ["python", "-m", "cdcd.spark"]:
            subprocess.run(words, check=True)
            return
        name, *rest = words[3:]
        output = None
        if ">" in rest:
            rest, output = rest[: rest.index(">")], Path(rest[-1])
        if "--config" in rest:  # the fixture has the connection, and the tests' Spark
            place = rest.index("--config")
            assert self._command(name, *rest[:place], *rest[place + 2 :]) == EXIT_OK, words
        else:
            assert main([name, *rest]) == EXIT_OK, words
        if output is not None:
            output.write_text(self._capsys.readouterr().out)


@pytest.mark.nightly  # each command and function of the page has tests of its own
@pytest.mark.timeout(900)
def test_the_blocks_of_the_page_run(
    spark: SparkSession,
    topics: TopicsWriter,
    command: Command,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(topics)
    here = {
        "/etc/cdcd/cdcd.yaml": configure(topics, tmp_path),
        "/data/": f"{tmp_path}/",
        "16/B374D848": format_lsn(30),
    }
    page = blocks(PAGE)
    for old in here:
        assert any(old in block.text for block in page), f"no block has {old}"
    register(spark)
    runner = Page(spark, command, capsys, here)
    shown = [(block.text, runner.run(block)) for block in page]

    def printed(part: str) -> str:
        (found,) = (output for text, output in shown if part in text)
        return found

    assert "|Ada|20.00|\n|Grace|20.00|" in printed("print(view.end_lsn").replace(" ", "")
    assert "1    20.00\n2    20.00" in printed("to_pandas")
    assert sorted(re.findall(r"'(.+?)'", printed("StaticTable"))) == ["15.00", "5.00"]
    versions = printed("past.where").replace(" ", "").splitlines()
    assert [line for line in versions if line.startswith(("|10.00|", "|15.00|"))] == [
        "|10.00|10|{1,20,1}|",
        "|15.00|20|NULL|",
    ]
    silver = DeltaTable(str(tmp_path / "silver")).to_pyarrow_table(columns=["id", "is_large"]).to_pylist()
    assert sorted((one["id"], one["is_large"]) for one in silver) == [(1, False), (2, True), (4, False)]
    assert spark.read.parquet(str(tmp_path / "totals")).count() == 5
    assert len(spark.read.parquet(str(tmp_path / "report")).collect()) == 2
    assert {row.op for row in runner._names["again"].select("op").collect()} == {"d", "c"}
    changes = [json.loads(line) for line in printed("cdcd.spark read").splitlines()]
    assert [(one["commit_lsn"], one["op"]) for one in changes if one["op"]] == [(30, "d"), (LAST_LSN, "c")]
    assert "3 rows in the topic, 3 in the mirror" in printed("cdcd.spark verify")
    with duckdb.connect(str(tmp_path / "shop.duckdb")) as database:
        found = database.execute("SELECT id, total FROM public_orders ORDER BY id").fetchall()
        assert [(number, float(total)) for number, total in found] == [(1, 15.0), (2, 20.0), (4, 5.0)]
    moved = read_mirror(tmp_path / "moved")
    assert moved.topics == [f"{topics.prefix}.public.{name}" for name in ("customers", "orders")]
    assert read_mirror(tmp_path / "orders-only").topics == [f"{topics.prefix}.public.orders"]
