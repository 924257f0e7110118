"""Spark finds `format("cdcd")` by itself where cdcd is installed: nobody has to register it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOP_LEVELS = (ROOT, ROOT / "cdcd" / "spark" / "discovery")
"""Both are the top level of the wheel (tests/unit/test_wheel.py)."""
SEARCH = """
from pyspark.sql.worker.lookup_data_sources import DataSource, import_module, iter_modules
found = [import_module(one.name).DefaultSource for one in iter_modules() if one.name.startswith("pyspark_")]
print([one.name() for one in found if issubclass(one, DataSource)])
"""
READ = """
from cdcd.spark.session import session
from cdcd.spark.data_source import register
spark = session("found")
for again in (False, True):
    if again:
        register(spark)  # as programs did before
    try:
        spark.read.format("cdcd").option("tabel", "public.t").load()
    except Exception as error:
        print("table" in str(error) and "tabel" in str(error))
"""


def output_of(program: str) -> list[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, TOP_LEVELS))}
    ended = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.split("\n")


def test_spark_s_own_search_finds_the_class() -> None:
    assert output_of(SEARCH)[0] == "['cdcd']"


@pytest.mark.nightly
def test_a_session_has_the_format_without_and_with_a_registration() -> None:
    assert output_of(READ)[:2] == ["True", "True"]
