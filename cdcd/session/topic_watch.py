"""Check at intervals that topics and schemas are still those that the records depend on.

In: the session's topics, schemas and plans.  Out: an error of the tree that ends the session.
Why: F66: when a topic gets more partitions, a key goes to another partition than before; F55: a registry that was
emptied gives cdcd's schema ids to other schemas.
Must not: create or alter anything.
"""

from __future__ import annotations

import asyncio

from cdcd.errors import RegistryUnavailable, SinkUnavailable
from cdcd.pipeline.plans import Plans
from cdcd.registry.confluent import Registry
from cdcd.sink.schemas import SchemaTopic
from cdcd.sink.topics import Topics
from cdcd.threads import in_thread

WATCH_INTERVAL_S = 20.0


async def watch(topics: Topics, schemas: Registry | SchemaTopic, plans: Plans) -> None:
    """Check until cancelled. Raises an error if a topic or a schema has changed."""
    while True:
        await asyncio.sleep(WATCH_INTERVAL_S)
        try:
            await in_thread(topics.verify, plans.partitions)
            await in_thread(schemas.verify_next)
        except (SinkUnavailable, RegistryUnavailable):
            continue  # the writer and the plans find and report the same error
