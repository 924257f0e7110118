"""A task whose Python has no cdcd: one error that says so, with the host and what to do."""

from __future__ import annotations

import pickle
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.types import StructType

from cdcd.columnar.record_schema import RAW_SCHEMA
from cdcd.spark.clients.sent_to_tasks import for_tasks
from cdcd.spark.data_source import CdcdDataSource, CdcdReader, CdcdStreamReader
from cdcd.spark.reading.mirrored_table import MirroredTable, MirrorReader
from cdcd.spark.source.source_options import parse_options
from cdcd.spark.storage.uri import open_storage
from tests.support.planned import options

TASK = """
import sys
sys.modules["cdcd"] = None
from pyspark.serializers import CloudPickleSerializer
made = CloudPickleSerializer().loads(sys.stdin.buffer.read())
made([])
"""
FUNCTION = for_tasks(lambda batches: RAW_SCHEMA)


def _reader() -> Any:
    return CdcdReader(parse_options(options()))


SENT: dict[str, Callable[[], Any]] = {
    "a function": lambda: FUNCTION,
    "the batch reader": _reader,
    "the stream's reader": lambda: CdcdStreamReader(parse_options(options())),
    "the data source": lambda: CdcdDataSource(options()),
    "the reader of a mirror": lambda: MirrorReader(
        MirroredTable(open_storage("/nowhere"), "public.items"), StructType()
    ),
}


@pytest.mark.parametrize("what", SENT)
def test_a_task_without_cdcd_says_so(what: str) -> None:
    sent = CloudPickleSerializer().dumps(SENT[what]())
    task = subprocess.run([sys.executable, "-c", TASK], input=sent, capture_output=True, check=False)
    said = task.stderr.decode()
    assert task.returncode == 1
    assert "CDCD-SPARK-READ: the Python of an executor has no package cdcd" in said
    assert f"host={socket.gethostname()} python={sys.executable}" in said
    assert "install cdcd with its extra `spark`" in said


@pytest.mark.parametrize("pickler", [CloudPickleSerializer(), pickle])
def test_what_is_sent_is_the_same_in_a_task(pickler: Any) -> None:
    read = pickler.loads(pickler.dumps(_reader()))
    assert type(read) is CdcdReader
    assert read._options == _reader()._options
    source = pickler.loads(pickler.dumps(CdcdDataSource(options())))
    assert (type(source), source.options) == (CdcdDataSource, options())


def test_a_function_is_unpacked_once_in_a_task() -> None:
    seen: list[int] = []

    def count(number: int) -> int:
        seen.append(number)
        return len(seen)

    serializer = CloudPickleSerializer()
    sent = serializer.loads(serializer.dumps(for_tasks(count)))
    assert [sent(1), sent(2)] == [1, 2]
    assert not seen
