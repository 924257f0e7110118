"""The policy of a table and of a column."""

from __future__ import annotations

import re

from cdcd.config.format import Format
from cdcd.schema.policy import Policies, Policy, Rule


def test_a_later_rule_goes_before_an_earlier_one_and_a_columns_before_its_tables() -> None:
    policies = Policies(
        Policy(numeric_as="string", tombstones=False),
        (
            Rule(re.compile(r"public\.a"), re.compile("p.*"), {"numeric_as": "double"}),
            Rule(re.compile(r"public\..*"), None, {"numeric_as": "variable_scale", "special": "halt"}),
            Rule(re.compile(r"public\.a"), None, {"tombstones": True, "special": "string"}),
        ),
    )
    assert policies.table("other.a") == policies.default
    assert (policies.table("public.b").special, policies.table("public.b").tombstones) == ("halt", False)
    assert (policies.table("public.a").special, policies.table("public.a").tombstones) == ("string", True)
    assert policies.column("public.a", "price").numeric_as == "double"
    assert policies.column("public.a", "price").special == "string"
    assert policies.column("public.a", "id").numeric_as == "variable_scale"
    assert (
        policies.column("public.ab", "price").numeric_as == "variable_scale"
    )  # a pattern must match the complete name


def test_a_pattern_matches_names_with_line_ends() -> None:
    """A name may have any character, and a rule for all tables must match all of them."""
    configured = Format.model_validate(
        {
            "overrides": [
                {"table": ".*", "tombstones": False},
                {"table": "public.*", "column": "p.*", "numeric_as": "double"},
            ]
        }
    )
    policies = configured.policies()
    assert policies.table("public.two\nlines").tombstones is False
    assert policies.column("public.two\nlines", "pri\nce").numeric_as == "double"
