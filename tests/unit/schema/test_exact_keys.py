"""Format options that may merge two keys into one."""

from __future__ import annotations

import pytest

from cdcd.model import Column, PgType, Relation, ReplicaIdentity
from cdcd.schema.exact_keys import may_merge, merged_key_columns
from cdcd.schema.policy import Policies, Policy
from cdcd.schema.relation_schema import relation_schemas


@pytest.mark.parametrize(
    ("oid", "typmod", "policy", "is_merged"),
    [
        (1700, -1, Policy(numeric_as="double"), True),
        (1700, (16 << 16 | 2) + 4, Policy(numeric_as="double"), True),
        (
            1700,
            (15 << 16 | 2) + 4,
            Policy(numeric_as="double"),
            False,
        ),  # a double represents 15 digits exactly
        (9002, -1, Policy(numeric_as="double"), True),
        (1231, (15 << 16 | 2) + 4, Policy(numeric_as="double"), True),
        (1700, -1, Policy(numeric_as="string"), False),
        (1700, -1, Policy(interval_as="microseconds"), False),
        (1186, -1, Policy(interval_as="microseconds"), True),
        (1186, -1, Policy(interval_as="fields"), False),
        (23, -1, Policy(numeric_as="double", interval_as="microseconds"), False),
    ],
)
def test_a_choice_that_may_make_one_key_of_two_is_known(
    oid: int, typmod: int, policy: Policy, is_merged: bool
) -> None:
    """F82: outside a key the option only loses digits, which the operator has chosen."""
    types = {
        23: PgType(23, "pg_catalog", "int4", "b"),
        1186: PgType(1186, "pg_catalog", "interval", "b"),
        1231: PgType(1231, "pg_catalog", "_numeric", "b", element_oid=1700),
        1700: PgType(1700, "pg_catalog", "numeric", "b"),
        9002: PgType(9002, "shop", "amount", "d", base_oid=1700),
    }
    one = Relation(
        1,
        "s",
        "t",
        ReplicaIdentity.DEFAULT,
        (Column("k", oid, typmod, True), Column("v", oid, typmod, False)),
    )
    schemas = relation_schemas(one, types, ("k",), "shop", Policies(default=policy))
    assert merged_key_columns(one, schemas) == (("k",) if is_merged else ())
    assert not is_merged or may_merge(policy)
