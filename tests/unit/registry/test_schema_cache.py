"""The cache of a registry's answers does not grow with the number of versions of a table."""

from __future__ import annotations

import json
import tracemalloc

from cdcd.registry.schema_cache import MAX_IDS_OF_A_SUBJECT, SchemaCache, VersionCache
from tests.support.registry_content import with_namespaces


def text_of_version(number: int) -> str:
    """Return a schema with columns that no other version has."""
    names = ["id", *(f"column_{number}_{position}" for position in range(50))]
    fields = [{"name": name, "type": ["null", "string"], "default": None} for name in names]
    return json.dumps({"type": "record", "name": "Value", "fields": fields})


def test_the_last_versions_are_known_and_older_ones_are_asked_for_again() -> None:
    known = SchemaCache()
    texts = [text_of_version(number) for number in range(3 * MAX_IDS_OF_A_SUBJECT)]
    for number, text in enumerate(texts):
        assert known.take("s", text, number)
    assert [known.id_of("s", text) for text in texts[-MAX_IDS_OF_A_SUBJECT:]] == [
        *range(2 * MAX_IDS_OF_A_SUBJECT, 3 * MAX_IDS_OF_A_SUBJECT)
    ]
    assert known.id_of("s", texts[0]) is None
    assert known.take("s", texts[0], 0)
    assert known.id_of("s", texts[0]) == 0
    assert known.id_of("another", texts[0]) is None


def test_an_altered_table_pushes_no_other_out() -> None:
    """F55: tables that stream go on streaming while the registry is down."""
    known = SchemaCache()
    known.take("quiet", '"string"', 1)
    for number in range(500):
        known.take("altered", text_of_version(number), number + 2)
    assert known.id_of("quiet", '"string"') == 1
    assert known.subjects == ["altered", "quiet"]


def test_an_id_has_one_meaning_also_after_its_version_left_the_cache() -> None:
    known = SchemaCache()
    for number in range(3 * MAX_IDS_OF_A_SUBJECT):
        known.take("s", text_of_version(number), number)
    assert known.id_of("s", text_of_version(0)) is None
    assert not known.take("another", text_of_version(1), 0)
    assert known.id_of("another", text_of_version(1)) is None
    assert known.take("another", '{"name":"Value", "doc":"", ' + text_of_version(0)[1:], 0)


def test_another_scale_is_another_meaning() -> None:
    """Readers decode a decimal's bytes with the scale."""
    known = SchemaCache()
    text = '{"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}'
    assert known.take("s", text, 7)
    assert known.take("t", text, 7)
    assert not known.take("s", text.replace("2}", "4}"), 7)
    assert not known.take("s", text.replace("10", "12"), 7)


def test_a_subject_that_is_forgotten_may_have_the_same_ids_again() -> None:
    known = SchemaCache()
    known.take("s", text_of_version(0), 7)
    known.take("t", text_of_version(1), 8)
    known.forget("s")
    assert known.subjects == ["t"]
    assert known.id_of("s", text_of_version(0)) is None
    assert known.take("s", text_of_version(0), 7)
    known.clear()
    assert known.take("s", text_of_version(0), 8)


def test_hundreds_of_versions_take_little_memory() -> None:
    """The text of each version has 3 KiB."""
    known, earlier = SchemaCache(), VersionCache("s", 50_000)
    known.take("s", text_of_version(-1), 10**6)
    tracemalloc.start()
    try:
        for number in range(300):
            text = text_of_version(number)
            known.take("s", text, number)
            earlier.put(number, text)
        cached_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(text) > 3000
    assert cached_bytes < 500_000 < 300 * len(text)


def test_earlier_versions_are_cached_up_to_the_limit() -> None:
    """Versions are always read in the same order, so with eviction none would be found again."""
    earlier = VersionCache("s", 5_000)
    texts = [text_of_version(number) for number in range(100)]
    for number, text in enumerate(texts):
        earlier.put(number, text)
        earlier.put(number, text)
    cached = [number for number in range(100) if earlier.get(number) is not None]
    assert 3 < len(cached) < 50
    assert cached == list(range(len(cached)))
    assert all(earlier.get(number) == texts[number] for number in cached)


def test_a_name_and_a_namespace_are_the_full_name() -> None:
    """Registries write names in their own form, also those of nested types."""
    nested = {"type": "record", "name": "shop.public.t.Value", "fields": []}
    fields = [{"name": "v", "type": ["null", nested]}, {"name": "w", "type": "shop.public.t.Value"}]
    schema = {"type": "record", "name": "shop.public.t.Envelope", "fields": fields}
    known = SchemaCache()
    assert known.take("s", json.dumps(schema), 7)
    as_returned = with_namespaces(schema)
    assert as_returned["namespace"] == "shop.public.t"
    assert as_returned["fields"][1]["type"] == "Value"
    assert known.is_of(7, json.dumps(as_returned))
    assert not known.is_of(7, json.dumps({**as_returned, "namespace": "shop.public.u"}))
    assert not known.is_of(7, '{"type": "record"}'), "no schema"
