"""A schema of the query's own: the topics' schemas have the columns of a table."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StructType

from cdcd.errors import ConfigError
from cdcd.spark.data_source import CdcdDataSource
from tests.support.planned import options


@pytest.mark.parametrize("reader", ["reader", "streamReader"])
def test_a_schema_that_a_query_gives_is_refused(reader: str) -> None:
    source = CdcdDataSource(options(table="public.items"))
    with pytest.raises(ConfigError, match=r"schema\(\) does not choose the columns of a table") as raised:
        getattr(source, reader)(StructType())
    assert "set the option columns" in str(raised.value)
    assert getattr(CdcdDataSource(options()), reader)(StructType()) is not None
