"""Fault 22: Kafka refuses cdcd's authentication, or a permission is revoked: named, retried, and resolved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AclOperation

from tests.faults.access import Access, ByPassword, sink_by_token
from tests.support.hints import hint_of
from tests.support.issuer import Issuer
from tests.support.resolutions import command
from tests.support.secured_kafka import SecuredKafka
from tests.support.stack import confirmed_position
from tests.support.waiting import eventually
from tests.verify.running import verify


@pytest.mark.nightly
def test_a_wrong_password_is_named_and_heals_with_the_file(by_password: ByPassword) -> None:
    access = by_password("mistaken", "the right one", written="canary")
    daemon = access.daemon.start()
    eventually(lambda: "CDCD-SINK-AUTH" in daemon.status().get("reason", ""), "the refusal is named")
    assert daemon.status()["state"] == "backoff"
    assert daemon.get("/readyz")[0] == 503
    access.postgres.execute("INSERT INTO t VALUES (1)", dbname=access.database)
    access.secret.write_text("the right one")
    daemon.wait_state("streaming")
    with access.inserting(after=1) as rows:
        access.await_more_rows()
    access.assert_all_there(rows)
    assert "canary" not in daemon.log()


def test_a_revoked_acl_is_reported_and_waited_for(by_password: ByPassword) -> None:
    """Nothing is confirmed without the permission; once it is granted again, the waiting rows are written."""
    access = by_password("forbidden", "one")
    secured, daemon, topic = access.secured, access.daemon, access.topic
    daemon.start().wait_state("streaming")
    with access.inserting() as rows:
        access.await_more_rows()
        secured.deny("User:forbidden", topic)
        eventually(lambda: "CDCD-SINK-AUTH" in daemon.status()["reason"], "the refusal is named")
        before = confirmed_position(access.postgres, daemon.slot)
        failed = 'cdcd_errors_total{class="retryable",component="sink"} 0.0'
        eventually(lambda: failed not in daemon.get("/metrics")[1], "the error is counted")
        assert topic in daemon.log()
        assert confirmed_position(access.postgres, daemon.slot) == before
        reason = daemon.status()["reason"]
        assert "`cdcd check` lists the topics" in hint_of(reason)
        checked = command(daemon, "check")
        assert checked.returncode == 1
        reported = [line for line in checked.stdout.splitlines() if line.split()[1:3] == ["topic", topic]]
        refused = [line for line in reported if line.startswith("fail")]
        assert ["CDCD-SINK-AUTH: the principal may not write" in line for line in refused] == [True], (
            checked.stdout
        )
        assert "-> grant the principal Write on the topic" in checked.stdout
        secured.give_back("User:forbidden", topic)
        daemon.wait_state("streaming")
        access.await_more_rows()
        rechecked = command(daemon, "check")
        assert rechecked.returncode == 0, rechecked.stdout
    access.assert_all_there(rows)


@pytest.mark.parametrize("words", [("resume", "--accept-gap"), ("resnapshot",)])
def test_a_progress_topic_that_may_not_be_described_is_not_taken_for_a_missing_one(
    words: tuple[str, ...], by_password: ByPassword
) -> None:
    """Kafka leaves it out of the list of topics: a command would report that cdcd has not written anything yet."""
    access = by_password(f"blind-{words[0]}", "one")
    daemon = access.daemon.start()
    daemon.wait_state("streaming")
    with access.inserting():
        access.await_more_rows()
    assert daemon.stop() == 0
    principal = f"User:blind-{words[0]}"
    access.secured.deny(principal, f"{daemon.name}.__progress", AclOperation.DESCRIBE)
    done = command(daemon, *words)
    assert done.returncode == 1
    assert "CDCD-SINK-AUTH" in done.stdout + done.stderr


def test_verify_does_not_take_a_topic_that_may_not_be_described_for_a_missing_one(
    by_password: ByPassword,
) -> None:
    """An empty table without a topic is equal; with one that is hidden, or a hidden second one, nothing is known."""
    access = by_password("unseeing", "one")
    access.postgres.execute("CREATE TABLE empty (id int PRIMARY KEY)", dbname=access.database)
    access.postgres.execute("CREATE TABLE outbox (id int PRIMARY KEY)", dbname=access.database)
    daemon = access.daemon.start()
    daemon.wait_state("streaming")
    with access.inserting():
        access.await_more_rows()
    for topic in (f"{daemon.name}.public.outbox", f"{access.topic}.v2"):
        access.secured.deny("User:unseeing", topic, AclOperation.DESCRIBE)
    found = verify(daemon)
    assert {name: one["state"] for name, one in found.tables.items()} == {
        "public.empty": "equal",
        "public.outbox": "unknown",
        "public.t": "unknown",
    }
    assert "CDCD-SINK-AUTH" in found.tables["public.outbox"]["reason"]
    assert f"topic={access.topic}.v2" in found.tables["public.t"]["reason"]
    assert found.status == 2


TOKEN_LASTS_S = 2.0


@pytest.mark.nightly
def test_tokens_run_out_and_their_issuer_is_away_for_a_while(
    secured_kafka: SecuredKafka, entitled: Callable[[str, dict[str, object]], Access], tmp_path: Path
) -> None:
    """OAUTHBEARER: cdcd fetches a new token after expiry; without an issuer cdcd reports this and retries."""
    (tmp_path / "password").write_text("canary")
    with Issuer(TOKEN_LASTS_S) as issuer:
        sink = sink_by_token(secured_kafka, issuer.url, tmp_path / "password")
        access = entitled("User:bearer", sink)
        daemon = access.daemon
        daemon.entry = ("-m", "tests.faults.impatient")
        daemon.start().wait_state("streaming")
        with access.inserting() as rows:
            given = issuer.given
            eventually(lambda: issuer.given > given, "a token has expired")
            access.await_more_rows()
            issuer.is_away = True
            secured_kafka.bearer.cut()
            eventually(lambda: "CDCD-SINK-AUTH" in daemon.status()["reason"], "the missing token is named")
            issuer.is_away = False
            daemon.wait_state("streaming")
            access.await_more_rows()
        access.assert_all_there(rows)
    assert "canary" not in daemon.log()
