"""A writer of versions that races with others: `python -m tests.spark.racing TARGET ROUNDS [NAME=VALUE...]`.

Out: a line "ready", then, after a line on stdin, a line with the versions that this writer has published.
Invariant: each round publishes the successor of what is published at its start, or nothing.
"""

from __future__ import annotations

import json
import sys
import uuid
from dataclasses import replace

from cdcd.errors import StorageConflict
from cdcd.spark.storage.uri import Storage, open_storage
from cdcd.spark.target.commit_log import read_latest
from cdcd.spark.target.target_writer import TargetWriter
from cdcd.spark.target.versions import TargetVersion


def race(storage: Storage, rounds: int) -> list[int]:
    """Publish as often as possible; return the versions."""
    writer = uuid.uuid4().hex
    published = []
    for _ in range(rounds):
        found = read_latest(storage)
        version = replace(found or TargetVersion("shop", 4), writer=writer)
        try:
            published.append(TargetWriter(storage, found).publish(version).number)
        except StorageConflict:
            continue
    return published


if __name__ == "__main__":
    target, count, *pairs = sys.argv[1:]
    opened = open_storage(target, dict(one.partition("=")[::2] for one in pairs))
    print("ready", flush=True)
    input()
    print(json.dumps(race(opened, int(count))), flush=True)
