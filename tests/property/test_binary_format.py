"""Any bytes that are read as a binary format become text, or are refused by an error in `UNREADABLE`."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.schema.test_binary_format import FUNCTIONS, SAMPLES, text_or_refusal


@settings(deadline=None)
@given(st.data())
@pytest.mark.parametrize("name", FUNCTIONS)
def test_any_bytes_are_text_or_refused(name: str, data: st.DataObject) -> None:
    raw = data.draw(st.binary(max_size=64))
    text = text_or_refusal(FUNCTIONS[name], raw)
    assert text is None or isinstance(text, bytes)


@settings(deadline=None)
@given(st.data())
@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_with_other_bytes_in_it_is_text_or_refused(name: str, data: st.DataObject) -> None:
    raw = bytearray(SAMPLES[name])
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    text_or_refusal(FUNCTIONS[name], bytes(raw))
