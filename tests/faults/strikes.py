"""The random faults: each strikes once and is over when it returns, apart from what cdcd has to do about it.

In: a world whose daemon goes through proxies, a seeded generator.  Out: whether it really struck.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

import psycopg2

from cdcd.demo.stack.kafka import KafkaCluster
from cdcd.demo.stack.registry import SchemaRegistry
from tests.faults.world import World
from tests.support.doors import KafkaDoors
from tests.support.proxy import Proxy


@dataclass
class Scene:
    """The world, its servers, and the links in front of them."""

    world: World
    kafka: KafkaCluster
    registry: SchemaRegistry
    doors: KafkaDoors
    to_postgres: Proxy
    to_registry: Proxy
    dice: random.Random

    @property
    def pid(self) -> int | None:
        """The daemon's process, when it runs."""
        process = self.world.daemon.process
        return process.pid if process is not None and process.poll() is None else None

    def links(self) -> list[Proxy]:
        return [self.to_postgres, self.to_registry, *self.doors.proxies]


def killed(scene: Scene) -> bool:
    """SIGKILL, and a new start."""
    if scene.pid is None:
        return False
    scene.world.daemon.kill()
    scene.world.daemon.start()
    return True


def frozen(scene: Scene) -> bool:
    """SIGSTOP for a while."""
    if (pid := scene.pid) is None:
        return False
    os.kill(pid, signal.SIGSTOP)
    time.sleep(scene.dice.uniform(0.2, 1.5))
    os.kill(pid, signal.SIGCONT)
    return True


def stopped(scene: Scene) -> bool:
    """SIGTERM, and a new start."""
    if scene.pid is None:
        return False
    status = scene.world.daemon.stop()
    assert status == 0, f"SIGTERM ended in {status}"
    scene.world.daemon.start()
    return True


def walsender_ended(scene: Scene) -> bool:
    """pg_terminate_backend of who holds the slot."""
    rows = scene.world.server.execute(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s AND active",
        scene.world.daemon.slot,
    )
    return bool(rows)


def postgres_crashed(scene: Scene) -> bool:
    """An immediate stop, recovery at the start."""
    scene.world.server.restart("immediate")
    return True


def postgres_restarted(scene: Scene) -> bool:
    """A fast stop, which waits for the walsender."""
    scene.world.server.restart("fast")
    return True


def broker_killed(scene: Scene) -> bool:
    """SIGKILL one of the three, and its start."""
    broker = scene.dice.choice(scene.kafka.brokers)
    broker.kill()
    time.sleep(scene.dice.uniform(0, 1))
    broker.start()
    return True


def cut(scene: Scene) -> bool:
    """Reset every connection of one server."""
    link = scene.dice.choice(scene.links())
    was_open = link.open_connections
    link.cut()
    return was_open > 0


def held(scene: Scene) -> bool:
    """A link that lets nothing through for a while, one way or both."""
    link = scene.dice.choice(scene.links())
    ways = scene.dice.choice(((), ("up",), ("down",)))
    was_open = link.open_connections
    link.hold(*ways)
    time.sleep(scene.dice.uniform(0.2, 1.5))
    link.heal()
    return was_open > 0


def cut_in_the_middle(scene: Scene) -> bool:
    """A connection is reset after some more bytes, in the middle of whatever they are."""
    link = scene.dice.choice(scene.links())
    way, count = scene.dice.choice(("up", "down")), link.accepted
    before = link.passed_bytes[way]
    link.cut_after(way, scene.dice.randrange(1, 20_000))
    time.sleep(0.5)
    link.heal()
    return link.passed_bytes[way] > before or link.accepted > count


def refused(scene: Scene) -> bool:
    """A server that is away for a moment."""
    link = scene.dice.choice(scene.links())
    link.refuse()
    time.sleep(scene.dice.uniform(0.1, 1))
    link.heal()
    link.accept()
    return True


STRIKES: dict[Callable[[Scene], bool], int] = {
    killed: 60,
    frozen: 6,
    stopped: 6,
    walsender_ended: 6,
    cut: 8,
    cut_in_the_middle: 6,
    held: 6,
    refused: 4,
    postgres_crashed: 2,
    postgres_restarted: 1,
    broker_killed: 1,
}
"""How often each is chosen."""


def strike(scene: Scene) -> tuple[str, bool]:
    """One fault of the seed's choice, in the middle of things: its name, and whether it struck."""
    time.sleep(scene.dice.expovariate(1.5))
    chosen = scene.dice.choices(list(STRIKES), list(STRIKES.values()))[0]
    try:
        struck = chosen(scene)
    except psycopg2.OperationalError:
        struck = False  # the server is not up again from the fault before
    return chosen.__name__, struck
