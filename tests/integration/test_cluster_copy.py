"""A copied cluster is a new one for PostgreSQL, and no other cluster has its identifier."""

from __future__ import annotations

import pytest

from tests.support.cluster_copy import crc32c
from tests.support.nightly import nightly_except
from tests.support.stack import POSTGRES_MAJORS, PostgresServers


def test_the_checksum_is_that_of_rfc_3720() -> None:
    """The examples of RFC 3720, B.4."""
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(bytes([0xFF] * 32)) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E


@pytest.mark.parametrize("major", nightly_except(POSTGRES_MAJORS, 18))
def test_each_copy_has_an_identifier_of_its_own(pg_server: PostgresServers, major: int) -> None:
    identifiers = set()
    for _ in range(2):
        with pg_server.fresh(major) as server:
            server.restart("immediate")  # PostgreSQL checks pg_control and reads the WAL
            assert "database system was not properly shut down" in server.log.read_text()
            ((identifier,),) = server.execute("SELECT system_identifier FROM pg_control_system()")
        identifiers.add(identifier)
    ((of_session,),) = pg_server(major).execute("SELECT system_identifier FROM pg_control_system()")
    assert len({*identifiers, of_session}) == 3
