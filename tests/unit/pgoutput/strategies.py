"""Hypothesis strategies for messages, derived from the message table."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from cdcd.pgoutput import messages as m
from cdcd.pgoutput.messages import FieldFormat, WireFormat, is_present

_uint32 = st.integers(0, 2**32 - 1)
_string = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
_content = st.binary(max_size=40)
_tuple_column = st.one_of(
    st.just(m.NULL), st.just(m.UNCHANGED), st.builds(m.text, _content), st.builds(m.binary, _content)
)
_tuple = st.builds(m.TupleData, st.lists(_tuple_column, max_size=5).map(tuple))
_old = st.builds(m.OldTuple, st.sampled_from([b"K", b"O"]), _tuple)
_column = st.builds(m.RelationColumn, st.booleans(), _string, _uint32, st.integers(-(2**31), 2**31 - 1))

_VALUES: dict[WireFormat, st.SearchStrategy[Any]] = {
    WireFormat.ZERO: st.just(0),
    WireFormat.FLAG: st.booleans(),
    WireFormat.TRUNCATE_OPTIONS: st.integers(0, 3),
    WireFormat.IDENTITY: st.sampled_from("dnfi"),
    WireFormat.OID: _uint32,
    WireFormat.XID: _uint32,
    WireFormat.LSN: st.integers(0, 2**64 - 1),
    WireFormat.TIME: st.integers(-(2**63), 2**63 - 1),
    WireFormat.STRING: _string,
    WireFormat.CONTENT: _content,
    WireFormat.RELIDS: st.lists(_uint32, max_size=4).map(tuple),
    WireFormat.COLUMNS: st.lists(_column, max_size=4).map(tuple),
    WireFormat.NEW_TUPLE: _tuple,
    WireFormat.OLD_TUPLE: _old,
    WireFormat.OPTIONAL_OLD_TUPLE: st.none() | _old,
}


def _value(one: FieldFormat, session: dict[str, Any]) -> st.SearchStrategy[Any]:
    return _VALUES[one.wire.kind] if is_present(one.wire.when, **session) else st.none()


@st.composite
def messages_and_sessions(draw: st.DrawFn) -> tuple[m.AnyMessage, dict[str, Any]]:
    """Generate any message, together with facts of a session in which it exists."""
    row = draw(st.sampled_from(m.ROWS))
    session = {
        "in_stream": draw(st.booleans()),
        "protocol_version": draw(st.integers(row.since_version, 4)),
        "streaming_parallel": draw(st.booleans()),
    }
    session["in_stream"] = session["in_stream"] and session["protocol_version"] >= 2
    fields = {one.name: draw(_value(one, session)) for one in row.fields if not one.is_derived}
    return row.cls(**fields), session
