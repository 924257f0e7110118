"""Slots on real servers: exported snapshots, a creation that waits, the values read back."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from dataclasses import replace

import psycopg2
import pytest

from cdcd.errors import SlotMissing, SlotUnusable, SourceUnavailable
from cdcd.model import Control, Item
from cdcd.monitoring.partition_monitor import PartitionMonitor
from cdcd.monitoring.publication_monitor import PublicationMonitor
from cdcd.monitoring.server_monitor import ServerMonitor
from cdcd.monitoring.status import Status
from cdcd.monitoring.wal_guard import WalGuard
from cdcd.monitoring.wal_levels import Sizes
from cdcd.ops.metrics import Metrics
from cdcd.schema.policy import Policies
from cdcd.source.connection import connect_sql, fetch
from cdcd.source.slot import SlotStatistics, create_slot, drop_slot, read_decoded, read_slot
from tests.support.nightly import nightly, nightly_except
from tests.support.source import commits, make_slot, plain, read_until, source_database, streaming, until
from tests.support.stack import SUPPORTED_POSTGRES_MAJORS, PostgresServers, run_script

TABLE = "CREATE TABLE public.t (id int PRIMARY KEY)"


@pytest.mark.parametrize("major", nightly_except(SUPPORTED_POSTGRES_MAJORS, 18))
def test_the_exported_snapshot_sees_what_was_committed_before_the_slot_and_nothing_after(
    pg_server: PostgresServers, major: int
) -> None:
    """F36, F37."""
    with source_database(pg_server(major), TABLE, "INSERT INTO public.t VALUES (1)") as settings:
        with create_slot(settings, export_snapshot=True) as slot:
            run_script(plain(settings), "INSERT INTO public.t VALUES (2)")
            with contextlib.closing(psycopg2.connect(plain(settings))) as reader, reader.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                cursor.execute("SET TRANSACTION SNAPSHOT %s", (slot.snapshot_name,))
                cursor.execute("SELECT id FROM public.t")
                assert cursor.fetchall() == [(1,)]
        with contextlib.closing(connect_sql(settings)) as connection:
            state = read_slot(connection, settings.slot)
            assert state is not None
            assert (state.plugin, state.slot_type, state.database) == ("pgoutput", "logical", settings.slot)
            assert state.confirmed_flush_lsn == slot.consistent_point
            flags = (state.active, state.temporary, state.two_phase, state.failover, state.is_lost)
            assert not any(flags)
            drop_slot(connection, settings.slot)
            assert read_slot(connection, settings.slot) is None
            with pytest.raises(SlotMissing):
                drop_slot(connection, settings.slot)


@pytest.mark.parametrize("major", nightly_except(SUPPORTED_POSTGRES_MAJORS, 18))
def test_a_slot_without_a_snapshot_has_no_snapshot(pg_server: PostgresServers, major: int) -> None:
    with source_database(pg_server(major)) as settings, create_slot(settings, export_snapshot=False) as slot:
        assert slot.snapshot_name is None
        assert slot.consistent_point > 0


def test_a_slot_that_exists_is_not_created_again(pg_server: PostgresServers) -> None:
    with source_database(pg_server(18)) as settings:
        make_slot(settings)
        with pytest.raises(SlotUnusable, match="already exists"):
            create_slot(settings, export_snapshot=False)


@pytest.mark.parametrize("major", [nightly(14), 18])
def test_creation_that_waits_for_an_open_transaction_names_it(pg_server: PostgresServers, major: int) -> None:
    """F38: the interrupted creation leaves no slot."""
    with source_database(pg_server(major), TABLE) as settings:
        with contextlib.closing(
            psycopg2.connect(plain(settings), application_name="nightly report")
        ) as blocker:
            blocker.cursor().execute("INSERT INTO public.t VALUES (1)")
            with pytest.raises(SourceUnavailable, match="nightly report"):
                create_slot(settings, export_snapshot=True, timeout_s=1)
        with contextlib.closing(connect_sql(settings)) as connection:
            assert read_slot(connection, settings.slot) is None


@pytest.mark.parametrize("major", [nightly(15), nightly(16), nightly(17), 18])
def test_a_slot_for_prepared_transactions_says_so(pg_server: PostgresServers, major: int) -> None:
    with source_database(pg_server(major)) as settings:
        make_slot(replace(settings, two_phase=True))
        with contextlib.closing(connect_sql(settings)) as connection:
            state = read_slot(connection, settings.slot)
        assert state is not None
        assert state.two_phase


def test_a_failover_slot_says_so(pg_server: PostgresServers) -> None:
    with source_database(pg_server(18)) as settings:
        make_slot(replace(settings, failover=True))
        with contextlib.closing(connect_sql(settings)) as connection:
            state = read_slot(connection, settings.slot)
        assert state is not None
        assert state.failover


@pytest.mark.parametrize(("major", "way"), [nightly(14, "off"), (18, "off"), (18, "on")])
async def test_what_the_server_keeps_on_its_own_disk_is_seen(
    pg_server: PostgresServers, major: int, way: str
) -> None:
    """F25: with streaming off a large transaction is spilled there, with streaming on it is not."""
    with source_database(pg_server(major), TABLE, "CREATE PUBLICATION pub FOR TABLE public.t") as settings:
        settings = replace(settings, dsn=f"{settings.dsn}?options=-c%20logical_decoding_work_mem%3D64kB")
        make_slot(settings)
        run_script(plain(settings), "INSERT INTO public.t SELECT generate_series(1, 20000)")
        status = Status(Metrics("0"), name="s", slot=settings.slot)
        watch = PublicationMonitor(settings.publications, status.metrics, halts_at_removal=True)
        guard = WalGuard(settings, Sizes(None, None, None), status, pytest.fail)
        monitor = ServerMonitor(
            settings, status, watch, PartitionMonitor(Policies().table), guard, pytest.fail
        )
        async with streaming(settings, server_version_num=major * 10_000, streaming=way) as stream:
            await read_until(stream, lambda items: bool(commits(items) or ends_a_stream(items)))
        with contextlib.closing(connect_sql(settings)) as observer:  # the server counts in the background
            decoded = functools.partial(read_decoded, observer, settings.slot)
            await until(
                lambda: any((decoded().spilled_bytes, decoded().streamed_bytes)), "the server has counted"
            )
        looking = asyncio.ensure_future(monitor.run())
        await until(
            lambda: "cdcd_slot_server_spilled_bytes" in status.metrics.snapshot(),
            "the monitor has read the slot",
        )
        looking.cancel()
        samples = status.metrics.snapshot()
        with contextlib.closing(connect_sql(settings)) as observer:
            age_of = "SELECT age(catalog_xmin) FROM pg_replication_slots WHERE slot_name = %s"
            ((age,),) = fetch(observer, age_of, (settings.slot,))
    assert 0 < samples["cdcd_slot_catalog_xmin_age"] <= age
    assert (samples["cdcd_slot_server_spilled_bytes"] > 0) == (way == "off")
    assert (samples["cdcd_slot_server_streamed_bytes"] > 0) == (way == "on")


@pytest.mark.nightly
def test_an_old_server_does_not_report_spilled_transactions(pg_server: PostgresServers) -> None:
    with source_database(pg_server(13)) as settings:
        make_slot(settings)
        with contextlib.closing(connect_sql(settings)) as connection:
            assert read_decoded(connection, settings.slot) == SlotStatistics()


def ends_a_stream(items: list[Item]) -> bool:
    """Return whether a Stream Commit is among the items."""
    return any(isinstance(item, Control) and item.payload[:1] == b"c" for item in items)
