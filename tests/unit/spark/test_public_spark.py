"""`cdcd.spark` uses what each Spark has, also Spark Connect: no JVM, SparkContext or RDD, no private names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.syntax import syntax_tree

ROOT = Path(__file__).parents[3]
MODULES = sorted([*(ROOT / "cdcd" / "spark").rglob("*.py"), *(ROOT / "deploy" / "spark").glob("*.py")])
NOT_EVERYWHERE = {
    "_jvm", "_jsc", "_sc", "_jdf", "_jc", "_jsparkSession", "_jwrite", "_jreader", "sparkContext", "SparkContext",
    "rdd", "toRDD", "py4j", "java_gateway",
}  # fmt: skip


def wrong_names(tree: ast.AST) -> Iterator[str]:
    """Yield what a module uses that not every Spark has: names, attributes, imports, and names given as text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield from {node.attr} & NOT_EVERYWHERE
        elif isinstance(node, ast.Name):
            yield from {node.id} & NOT_EVERYWHERE
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
            yield from {str(one.value) for one in node.args if isinstance(one, ast.Constant)} & NOT_EVERYWHERE
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if _is_wrong(alias.name))
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name for name in names if _is_wrong(name))


def _is_wrong(imported: str) -> bool:
    first, *parts = imported.split(".")
    if first == "py4j":
        return True
    return first == "pyspark" and any(part.startswith("_") or part in NOT_EVERYWHERE for part in parts)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_what_every_spark_has_is_used(path: Path) -> None:
    assert list(wrong_names(syntax_tree(path.read_text()))) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("spark.sparkContext.defaultParallelism", "sparkContext"),
        ("from pyspark import SparkContext", "pyspark.SparkContext"),
        (
            "from pyspark.sql.types import _parse_datatype_json_string",
            "pyspark.sql.types._parse_datatype_json_string",
        ),
        ("from pyspark._typing import F", "pyspark._typing.F"),
        ("frame.rdd.getNumPartitions()", "rdd"),
        ("getattr(spark, '_jvm')", "_jvm"),
        ("import py4j.java_gateway", "py4j.java_gateway"),
    ],
)
def test_each_wrong_use_is_found(text: str, found: str) -> None:
    assert list(wrong_names(syntax_tree(text))) == [found]


def test_usual_code_is_not_found() -> None:
    text = "from pyspark.sql import DataFrame\nlogging.getLogger('py4j')\nself._own(spark.conf.get('a'))"
    assert list(wrong_names(syntax_tree(text))) == []
