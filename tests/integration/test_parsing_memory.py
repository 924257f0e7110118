"""Parsing one long quoted value needs memory proportional to the value, for any content.

A TOASTed value has up to 1 GB. No tracer in Python sees the memory of the regular expression engine, so a child
process reports its peak.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.nightly import nightly_except

SIZE_BYTES = 8_000_000
LIMIT_KB = 100_000
MEASURE = """
import resource
from cdcd.schema.binary_format import containers, strings
from cdcd.schema.types.array import array_codec
from cdcd.schema.types.composite import composite_codec
from cdcd.schema.types.hstore import encode_hstore
from cdcd.schema.types.text import PLAIN
from cdcd.model import Attribute, PgType

pair = PgType(1, "s", "t", "c", attributes=(Attribute("a", 25, -1), Attribute("b", 25, -1)))
functions = {{
    "array": array_codec(PLAIN, ",").text,
    "composite": composite_codec(pair, [PLAIN, PLAIN], ["text", "text"]).text,
    "hstore": encode_hstore,
    "binary array": containers.array(strings.as_is, 25, ","),
    "binary composite": containers.composite({{25: strings.as_is}}),
    "binary range": containers.span(strings.as_is),
    "binary hstore": strings.hstore,
}}
raw = {head!r} + {part!r} * {count} + {tail!r}
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
functions[{name!r}](raw)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
PLAIN_PART, BACKSLASHED, DOUBLED, MIXED = b"a ", b'\\"', b'""', b'x\\\\y\\"'
BINARY = SIZE_BYTES.to_bytes(4, "big")
ONE, TEXT = (1).to_bytes(4, "big"), (25).to_bytes(4, "big")
BINARY_HEADS = {
    "binary array": ONE + bytes(4) + TEXT + ONE + ONE + BINARY,
    "binary composite": ONE + TEXT + BINARY,
    "binary range": bytes((16,)) + BINARY,
    "binary hstore": ONE + BINARY,
}


@pytest.mark.parametrize(
    ("name", "head", "part", "tail"),
    nightly_except(
        [
            *(("array", b'{"', part, b'"}') for part in (PLAIN_PART, BACKSLASHED, b"\\\\", MIXED)),
            *(("hstore", b'"k"=>"', part, b'"') for part in (PLAIN_PART, BACKSLASHED, b"\\\\", MIXED)),
            *(("composite", b'("', part, b'",b)') for part in (PLAIN_PART, DOUBLED, b"\\\\", b'x\\\\y""')),
            *(
                (name, head, part, b"\xff\xff\xff\xff" if name == "binary hstore" else b"")
                for name, head in BINARY_HEADS.items()
                for part in (b"a ", b'"\\', b'x"')
            ),
        ],
        b'x\\\\y""',
        b'x"',
        of=lambda case: case[2],
    ),
)
def test_a_long_quoted_value_needs_no_more_than_a_few_copies_of_itself(
    name: str, head: bytes, part: bytes, tail: bytes
) -> None:
    program = MEASURE.format(name=name, head=head, part=part, tail=tail, count=SIZE_BYTES // len(part))
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert int(found.stdout) < LIMIT_KB
