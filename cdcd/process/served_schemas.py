"""The schema topic as the admin port serves it: what has to be waited for is waited for in a thread.

In: the topic, questions of readers.  Out: the book of what is committed, looked through again when it is asked to.
Invariant: one look at a time, and whoever came before it began shares its answer, so that many who ask for what is
not there cost no more than one.
Must not: block the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from cdcd.errors import SinkError
from cdcd.schema.schema_index import Registered, SchemaIndex
from cdcd.sink.schemas import SchemaTopic
from cdcd.threads import in_thread

_LOG = structlog.stdlib.get_logger("cdcd.schemas")


class ServedSchemas:
    """What `cdcd.ops.schemas` asks."""

    def __init__(self, topic: SchemaTopic) -> None:
        self._topic = topic
        self._looking = asyncio.Lock()
        self._looks = 0
        self._is_known = True

    @property
    def schema_index(self) -> SchemaIndex | None:
        """What is committed; None until the topic was read."""
        return self._topic.schema_index

    @property
    def compatibility(self) -> str:
        """The level that new schemas are checked by."""
        return self._topic.compatibility

    async def refresh(self, concerns: Callable[[Registered], bool]) -> bool:
        """Look for what was committed since; False when Kafka does not answer."""
        if self._topic.is_deciding(concerns):
            await in_thread(self._topic.await_decided, concerns)
        before = self._looks
        async with self._looking:
            if self._looks == before:  # nobody has begun to look since
                self._looks += 1
                self._is_known = await self._look()
            return self._is_known

    async def _look(self) -> bool:
        try:
            await in_thread(self._topic.refresh)
        except SinkError as error:
            _LOG.warning("schemas_not_refreshed", error=str(error))
            return False
        return True
