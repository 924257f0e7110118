"""The flow with items of a real walsender: positions of adjacent messages and commits."""

from __future__ import annotations

from tests.support.source import commits, make_slot, plain, read_until, source_database, streaming
from tests.support.stack import PostgresServers, run_script
from tests.unit.pipeline.session_items import Flow

SCHEMA = (
    "CREATE TABLE public.items (id text PRIMARY KEY)",
    "CREATE PUBLICATION pub FOR TABLE public.items",
)


async def test_a_row_whose_commit_follows_a_message_at_once_is_not_dropped(
    pg_server: PostgresServers,
) -> None:
    """F1: a message outside the transaction ends at the position where the transaction's commit record begins."""
    with source_database(pg_server(18), *SCHEMA) as settings:
        start_lsn = make_slot(settings)
        # In a segment of its own: after a record that ends with its page comes the next page's header.
        run_script(
            plain(settings),
            "SELECT pg_switch_wal(); BEGIN; INSERT INTO public.items VALUES ('a');"
            " SELECT pg_logical_emit_message(false, 'audit', 'text'); COMMIT",
        )
        async with streaming(settings, start_lsn, server_version_num=180_000, messages=True) as stream:
            items = await read_until(stream, lambda items: commits(items) >= 1)
        flow = await Flow(start_lsn=start_lsn).feed(*items)
    assert [change[0] for change in flow.changes()] == ["c"]
    message_end, commit_end = flow.commit_positions
    assert message_end.end_lsn == flow.changes()[0][1], (
        "the test needs a commit that begins at the message's end"
    )
    assert commit_end.end_lsn > message_end.end_lsn
