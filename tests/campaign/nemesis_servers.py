"""More faults of the campaign: the servers' processes, and the links. See `nemesis`.

Invariant: while a broker is being killed no other one is out, because the cluster has three copies of everything and
promises nothing without two of them; pauses and partitions may take two brokers at once.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable

from cdcd.demo.stack.kafka import KafkaBroker
from tests.campaign import nemesis
from tests.campaign.nemesis import MOST_BROKERS_OUT, Fault, Scene, out_of_three, paused
from tests.campaign.plan import FAULTS
from tests.campaign.servers import start_postgres
from tests.support.proxy import Proxy, Way

Chosen = Callable[[Scene, random.Random], KafkaBroker | None]
WAYS: tuple[tuple[Way, ...], ...] = (("up",), ("down",), ("up", "down"))

# --- PostgreSQL ----------------------------------------------------------------------------------------------


def postgres_killed(scene: Scene, _dice: random.Random, lasts_s: float) -> bool:
    """SIGKILL of the postmaster; crash recovery at the start."""
    server = scene.servers.postgres
    with scene.claim("postgres") as is_free:
        if not is_free or server.pid is None or scene.walsender() is None:
            return False
        server.kill()
        scene.wait(lasts_s / 4)
        start_postgres(server)
        return True


def postgres_restarted(scene: Scene, _dice: random.Random, _lasts_s: float) -> bool:
    """A fast shutdown, which waits for the walsender."""
    with scene.claim("postgres") as is_free:
        if not is_free or scene.walsender() is None:
            return False
        scene.servers.postgres.stop("fast", 20)
        start_postgres(scene.servers.postgres)
        return True


def walsender_killed(scene: Scene, _dice: random.Random, _lasts_s: float) -> bool:
    """SIGKILL of the walsender: the postmaster ends all sessions and recovers."""
    with scene.claim("postgres") as is_free:
        if not is_free or (pid := scene.walsender()) is None:
            return False
        os.kill(pid, signal.SIGKILL)
        start_postgres(scene.servers.postgres)
        return True


# --- brokers -------------------------------------------------------------------------------------------------


def coordinator(scene: Scene, _dice: random.Random) -> KafkaBroker | None:
    """Return the transaction coordinator: the leader of the only partition of the transactional ids."""
    return scene.servers.leader("__transaction_state")


def is_used(scene: Scene, broker: KafkaBroker) -> bool:
    """Whether cdcd has a connection to the broker."""
    return bool(door_of(scene, broker).open_connections)


def door_of(scene: Scene, broker: KafkaBroker) -> Proxy:
    """Return cdcd's link to a broker."""
    return scene.servers.doors.proxies[scene.servers.kafka.brokers.index(broker)]


def killed(choose: Chosen) -> Fault:
    """SIGKILL of a broker that cdcd is connected to; it starts again after a while."""

    def fault(scene: Scene, dice: random.Random, lasts_s: float) -> bool:
        with scene.claim(brokers=MOST_BROKERS_OUT) as is_free:
            broker = choose(scene, dice) if is_free else None
            if broker is None or broker.pid is None or not is_used(scene, broker):
                return False
            broker.kill()
            scene.wait(lasts_s)
            broker.launch()
            broker.wait_ready()
            return True

    return fault


def broker_restarted(scene: Scene, dice: random.Random, _lasts_s: float) -> bool:
    """SIGTERM of a broker that cdcd is connected to: it gives its leadership away."""
    with scene.claim(brokers=MOST_BROKERS_OUT) as is_free:
        broker = out_of_three(scene, dice)
        if not is_free or broker.pid is None or not is_used(scene, broker):
            return False
        broker.stop()
        broker.launch()
        broker.wait_ready()
        return True


def stopped_for_a_while(choose: Chosen) -> Fault:
    """SIGSTOP of a broker, during which it gets requests of cdcd and answers none."""

    def fault(scene: Scene, dice: random.Random, lasts_s: float) -> bool:
        broker = choose(scene, dice)
        if broker is None:
            return False
        with scene.claim(f"broker {broker.node_id}", brokers=1) as is_free:
            if not is_free or (pid := broker.pid) is None:
                return False
            door = door_of(scene, broker)
            with paused(pid):
                before = dict(door.passed_bytes)
                scene.wait(lasts_s)
                after = dict(door.passed_bytes)
            return after["up"] > before["up"]

    return fault


def partitioned(*ways: Way, is_cut_off_from_cdcd: bool) -> Fault:
    """A broker whose bytes to (up) or from (down) the other ones are lost, by choice also those of cdcd.

    Without `ways` one of the directions is chosen.
    """

    def fault(scene: Scene, dice: random.Random, lasts_s: float) -> bool:
        broker = out_of_three(scene, dice)
        lost: tuple[Way, ...] = ways or dice.choice(WAYS[:2])
        door = door_of(scene, broker)
        names = [f"broker {broker.node_id}"] + [f"door {broker.node_id}"] * is_cut_off_from_cdcd
        with scene.claim(*names, brokers=1) as is_free:
            if not is_free or broker.pid is None:
                return False
            links = scene.servers.peers.of(broker.node_id, *lost)
            met = sum(link.met for link, _ in links)
            for link, directions in links:
                link.lose(*directions)
            if is_cut_off_from_cdcd:
                door.lose()
            scene.wait(lasts_s)
            has_lost = sum(link.met for link, _ in links) > met
            for link, _ in links:
                link.heal()
            if is_cut_off_from_cdcd:
                door.heal()
            return has_lost

    return fault


# --- links ---------------------------------------------------------------------------------------------------


def some_door(scene: Scene, dice: random.Random) -> tuple[Proxy | None, str]:
    """Return a link to a broker that has connections, and its name."""
    brokers = [broker for broker in scene.servers.kafka.brokers if is_used(scene, broker)]
    if not brokers:
        return None, ""
    broker = dice.choice(brokers)
    return door_of(scene, broker), f"door {broker.node_id}"


def broker_cut_off_from_cdcd(scene: Scene, dice: random.Random, lasts_s: float) -> bool:
    """cdcd's bytes to or from a broker are lost; its connections end when the fault ends."""
    door, name = some_door(scene, dice)
    return door is not None and lost(scene, door, name, dice.choice(WAYS), lasts_s)


def stream_lost(scene: Scene, dice: random.Random, lasts_s: float) -> bool:
    """The bytes between PostgreSQL and cdcd are lost."""
    return lost(scene, scene.servers.to_postgres, "stream", dice.choice(WAYS), lasts_s)


def lost(scene: Scene, link: Proxy, name: str, ways: tuple[Way, ...], lasts_s: float) -> bool:
    """Lose the bytes of a link."""
    with scene.claim(name) as is_free:
        if not is_free:
            return False
        met = link.met
        link.lose(*ways)
        scene.wait(lasts_s)
        has_lost = link.met > met
        link.heal()
        return has_lost


def requests_delayed(scene: Scene, dice: random.Random, lasts_s: float) -> bool:
    """Each piece of bytes between cdcd and a broker is late."""
    door, name = some_door(scene, dice)
    return door is not None and delayed(scene, door, name, dice.choice((0.02, 0.2, 1.0)), lasts_s)


def stream_delayed(scene: Scene, dice: random.Random, lasts_s: float) -> bool:
    """Each piece of bytes between PostgreSQL and cdcd is late."""
    return delayed(scene, scene.servers.to_postgres, "stream", dice.choice((0.02, 0.2, 1.0)), lasts_s)


def delayed(scene: Scene, link: Proxy, name: str, delay_s: float, lasts_s: float) -> bool:
    """Delay the bytes of a link."""
    with scene.claim(name) as is_free:
        if not is_free:
            return False
        passed = sum(link.passed_bytes.values())
        link.slow(delay_s=delay_s)
        scene.wait(max(lasts_s, 2 * delay_s))
        has_delayed = sum(link.passed_bytes.values()) > passed
        link.heal()
        return has_delayed


def connections_cut(scene: Scene, dice: random.Random, _lasts_s: float) -> bool:
    """All connections of a link are reset."""
    servers = scene.servers
    links = [servers.to_postgres, servers.to_registry, *servers.doors.proxies]
    used = [link for link in links if link.open_connections]
    if not used:
        return False
    dice.choice(used).cut()
    return True


def connection_cut_amid(scene: Scene, dice: random.Random, lasts_s: float) -> bool:
    """A connection is reset after some more bytes, in the middle of a message."""
    door, name = some_door(scene, dice)
    link, name = dice.choice(((door, name), (scene.servers.to_postgres, "stream")))
    with scene.claim(name) as is_free:
        if not is_free or link is None:
            return False
        way: Way = dice.choice(("up", "down"))
        link.cut_after(way, dice.randrange(1, 3000))
        for _ in range(max(10, round(lasts_s * 10))):
            if link.has_cut(way) or scene.over.wait(0.1):
                break
        has_cut = link.has_cut(way)
        link.heal()
        return has_cut


BY_NAME: dict[str, Fault] = {
    "broker_killed": killed(out_of_three),
    "coordinator_killed": killed(coordinator),
    "broker_paused": stopped_for_a_while(out_of_three),
    "coordinator_paused": stopped_for_a_while(coordinator),
    "broker_partitioned": partitioned("up", "down", is_cut_off_from_cdcd=True),
    "broker_half_partitioned": partitioned(is_cut_off_from_cdcd=False),
    **{
        fault.__name__: fault
        for fault in (
            nemesis.cdcd_killed, nemesis.cdcd_stopped, nemesis.cdcd_paused, nemesis.clock_skewed,
            nemesis.registry_paused, nemesis.walsender_ended, nemesis.walsender_paused, nemesis.request_late,
            postgres_killed, postgres_restarted, walsender_killed, broker_restarted, broker_cut_off_from_cdcd,
            stream_lost, requests_delayed, stream_delayed, connections_cut, connection_cut_amid,
        )
    },
}  # fmt: skip
assert BY_NAME.keys() == FAULTS.keys()
