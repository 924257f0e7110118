"""The schema topic for the admin port: calls that may wait run in a thread.

In: the topic, requests of readers.  Out: the index of committed schemas, refreshed on demand.
Invariant: one refresh at a time. Requests that came before it began share its result, so that many requests for a
missing schema cost one refresh.
Must not: block the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from cdcd.errors import SinkError
from cdcd.schema.schema_index import RegisteredVersion, SchemaIndex
from cdcd.sink.schemas import SchemaTopic
from cdcd.threads import in_thread

_LOG = structlog.stdlib.get_logger("cdcd.schemas")


class ServedSchemas:
    """The committed schemas, as `cdcd.ops.schemas` reads them."""

    def __init__(self, topic: SchemaTopic) -> None:
        self._topic = topic
        self._refresh_lock = asyncio.Lock()
        self._refreshes = 0
        self._is_known = True

    @property
    def schema_index(self) -> SchemaIndex | None:
        """The index of committed schemas; None until the topic was read."""
        return self._topic.schema_index

    @property
    def compatibility(self) -> str:
        """The level that new schemas are checked by."""
        return self._topic.compatibility

    async def refresh(self, concerns: Callable[[RegisteredVersion], bool]) -> bool:
        """Read schemas committed since the last refresh; return False if Kafka does not answer."""
        if self._topic.is_deciding(concerns):
            await in_thread(self._topic.await_decided, concerns)
        before = self._refreshes
        async with self._refresh_lock:
            if self._refreshes == before:  # no other request has begun a refresh since
                self._refreshes += 1
                self._is_known = await self._read()
            return self._is_known

    async def _read(self) -> bool:
        try:
            await in_thread(self._topic.refresh)
        except SinkError as error:
            _LOG.warning("schemas_not_refreshed", error=str(error))
            return False
        return True
