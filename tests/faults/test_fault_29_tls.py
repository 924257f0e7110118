"""Fault 29: certificates and authorities that change on disk are used from the next connection on."""

from __future__ import annotations

from pathlib import Path

from tests.faults.test_fault_31_secrets import TABLE, assert_once, hang_up
from tests.integration.conftest import NewDaemon
from tests.support.certificates import authority, install
from tests.support.daemon import await_confirmed
from tests.support.reader import Reader
from tests.support.stack import PostgresServers
from tests.support.waiting import eventually


def test_certificates_and_authorities_that_were_changed_are_read_at_the_next_connection(
    pg_server: PostgresServers, new_daemon: NewDaemon, reader: Reader, tmp_path: Path
) -> None:
    for generation in ("one", "two"):
        authority(tmp_path / generation)
    ours = tmp_path / "ours"
    ours.mkdir()
    server = pg_server.fresh(18, settings={"ssl_cert_file": "server.crt", "ssl_key_file": "server.key"})
    with server:
        install(tmp_path / "one", server.data_folder, "server.crt", "server.key", "ca.crt")
        rules = server.data_folder / "pg_hba.conf"
        rules.write_text(
            "hostssl all cdcd 127.0.0.1/32 cert\nhostnossl all cdcd all reject\n" + rules.read_text()
        )
        for option in ("ssl_ca_file = 'ca.crt'", "ssl = on"):
            server.execute(f"ALTER SYSTEM SET {option}")
        server.execute("SELECT pg_reload_conf()")
        server.create_database("shop")
        server.execute(TABLE, dbname="shop")
        server.create_role("cdcd")
        server.execute("GRANT SELECT ON t TO cdcd", dbname="shop")
        install(tmp_path / "one", ours, "client.crt", "client.key", "ca.crt")
        files = f"sslrootcert={ours}/ca.crt&sslcert={ours}/client.crt&sslkey={ours}/client.key"
        with new_daemon(server, "shop", sink={"topics": {"partitions": 1}}) as daemon:
            plain = f"postgresql://cdcd@127.0.0.1:{server.port}/shop"
            daemon.config["source"]["dsn"] = f"{plain}?sslmode=verify-full&{files}"
            daemon.start().wait_state("streaming")
            server.execute("INSERT INTO t VALUES (1)", dbname="shop")
            await_confirmed(server, daemon)
            install(tmp_path / "two", server.data_folder, "server.crt", "server.key", "ca.crt")
            server.execute("SELECT pg_reload_conf()")
            hang_up(server)
            eventually(lambda: daemon.status()["state"] == "backoff", "neither side trusts the other")
            server.execute("INSERT INTO t VALUES (2)", dbname="shop")
            install(tmp_path / "two", ours, "client.crt", "client.key", "ca.crt")
            daemon.wait_state("streaming")
            await_confirmed(server, daemon)
            ((used,),) = server.execute(
                "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_replication USING (pid) WHERE client_dn = '/CN=cdcd'"
            )
            assert used == 1
            assert daemon.stop() == 0
            assert_once(reader, daemon, [1, 2])
