"""The keys of the changes are those of the encoder's records, whatever the table, its identity and the rows."""

from __future__ import annotations

import random

import pytest

from cdcd.avro.encode import encode_batch
from cdcd.errors import CdcdError
from cdcd.pipeline.changed_rows import ChangedRows, changed_rows
from tests.support.some_rows import Table, context, outcome, row_batch_of


def is_error(result: object) -> bool:
    return isinstance(result, tuple) and isinstance(result[0], type)


@pytest.mark.parametrize("first_seed", range(0, 1200, 300))
def test_the_keys_are_those_of_the_records(first_seed: int) -> None:
    compared = 0
    for seed in range(first_seed, first_seed + 300):
        chance = random.Random(seed)
        tables = [Table(chance, relid) for relid in (7, 8, 9)]
        plans = {table.relid: table.plan for table in tables}
        batch = row_batch_of(tables, chance)
        records = outcome(encode_batch, batch, plans, context(chance))
        found = outcome(changed_rows, batch, plans, [7, 8])
        if is_error(found):
            assert issubclass(found[0], CdcdError), (seed, found)
        if is_error(records):
            continue
        assert not is_error(found), (seed, found)
        for table in tables[:2]:
            changes = found.get(table.relid, ChangedRows())
            keys = {record.key for record in records if record.topic == table.plan.topic}
            if not table.is_keyed:
                assert changes.is_unknown == (keys == {None})
                keys = set()
            assert changes.keys == keys - {None}, (seed, table.relid)
            assert changes.incomplete.keys() <= changes.keys
            assert changes.moved.keys() <= changes.keys
            compared += bool(keys)
    assert compared > 50
