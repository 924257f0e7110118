"""A broker with a listener each for SCRAM passwords, certificates and OAuth tokens, and with ACLs.

In: the jars, a folder.  Out: the addresses of a proxy for each listener; functions that change users, passwords, ACLs
and the broker's certificate while the broker runs, through its admin API.
Invariant: the test itself uses the first listener, without authentication and with all permissions.
"""

from __future__ import annotations

import itertools
from functools import cached_property
from pathlib import Path

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from cdcd.demo.stack.artefacts import Cache
from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.ports import free_port
from tests.support.certificates import authority
from tests.support.proxy import Proxy

_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
_BEARER = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
    'unsecuredLoginStringClaim_sub="broker";'
)
"""Without a configured handler, this login module accepts unsigned tokens."""
_TIMEOUT_S = 30


class SecuredKafka:
    """One broker. `sasl`, `tls` and `bearer` are the proxies of the listeners that authenticate."""

    def __init__(self, folder: Path, cache: Cache) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self._numbers = itertools.count(1)
        self._stores: dict[str, str] = {}
        self._running: KafkaBroker | None = None
        authority(folder / "first")
        self.show(folder / "first")
        self.trust(folder / "first")
        self.broker = KafkaBroker(folder / "kafka", cache=cache, settings=self._settings())
        self.sasl, self.tls, self.bearer = (self._listen(name) for name in ("SASL", "TLS", "BEARER"))

    def __enter__(self) -> SecuredKafka:
        self.broker.start()
        self._running = self.broker
        return self

    def __exit__(self, *_exc: object) -> None:
        self.broker.stop()
        for proxy in (self.sasl, self.tls, self.bearer):
            proxy.close()

    def _listen(self, name: str) -> Proxy:
        port = free_port()
        proxy = Proxy(port)
        self.broker.add_listener(name, port, advertised_port=proxy.port, moved=proxy.point_to)
        return proxy

    def _settings(self) -> dict[str, str]:
        return {
            "listener.security.protocol.map": (
                "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SSL,BEARER:SASL_PLAINTEXT"
            ),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "listener.name.sasl.sasl.enabled.mechanisms": "SCRAM-SHA-256",
            "listener.name.sasl.scram-sha-256.sasl.jaas.config": _SCRAM,
            "listener.name.bearer.sasl.enabled.mechanisms": "OAUTHBEARER",
            "listener.name.bearer.oauthbearer.sasl.jaas.config": _BEARER,
            "listener.name.bearer.connections.max.reauth.ms": "60000",
            "listener.name.tls.ssl.client.auth": "required",
            **{f"listener.name.tls.{name}": value for name, value in self._stores.items()},
        }

    @cached_property
    def admin(self) -> AdminClient:
        """Return an admin client for the test itself."""
        return AdminClient({"bootstrap.servers": self.broker.bootstrap})

    # --- passwords ---

    def set_password(self, user: str, password: str) -> None:
        """Set the password of a user; existing connections stay authenticated."""
        secret = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        self._alter_user(user, UserScramCredentialUpsertion(user, secret, password.encode()))

    def drop_user(self, user: str) -> None:
        """Delete the user's password."""
        self._alter_user(user, UserScramCredentialDeletion(user, ScramMechanism.SCRAM_SHA_256))

    def _alter_user(self, user: str, change: object) -> None:
        self.admin.alter_user_scram_credentials([change])[user].result(_TIMEOUT_S)

    # --- ACLs ---

    def allow(self, principal: str) -> None:
        """Allow this principal all operations on every topic and transactional id, and nothing on groups."""
        self._grant(principal, (ResourceType.TOPIC, "*", AclOperation.ALL))
        self._grant(principal, (ResourceType.TRANSACTIONAL_ID, "*", AclOperation.ALL))

    def deny(self, principal: str, topic: str, operation: AclOperation = AclOperation.WRITE) -> None:
        """Deny this principal writes to one topic, or another operation; a deny overrides every allow."""
        right = (ResourceType.TOPIC, topic, operation)
        self._grant(principal, right, AclPermissionType.DENY)

    def give_back(self, principal: str, topic: str) -> None:
        """Delete the ACL that `deny` created."""
        refused = AclBindingFilter(
            ResourceType.TOPIC,
            topic,
            ResourcePatternType.LITERAL,
            principal,
            "*",
            AclOperation.WRITE,
            AclPermissionType.DENY,
        )
        for future in self.admin.delete_acls([refused]).values():
            future.result(_TIMEOUT_S)

    def _grant(
        self,
        principal: str,
        right: tuple[ResourceType, str, AclOperation],
        permission: AclPermissionType = AclPermissionType.ALLOW,
    ) -> None:
        kind, name, operation = right
        binding = AclBinding(kind, name, ResourcePatternType.LITERAL, principal, "*", operation, permission)
        for future in self.admin.create_acls([binding]).values():
            future.result(_TIMEOUT_S)

    # --- certificates ---

    def show(self, made: Path) -> None:
        """Let the broker use a certificate of this authority."""
        self._store("ssl.keystore", made / "server.key", made / "server.crt")

    def trust(self, *authorities: Path) -> None:
        """Let the broker accept client certificates of these authorities."""
        self._store("ssl.truststore", *(made / "ca.crt" for made in authorities))

    def _store(self, name: str, *parts: Path) -> None:
        """Concatenate files under a new name: the broker reloads them when its configuration changes."""
        target = self.folder / f"{name}-{next(self._numbers)}.pem"
        target.write_text("".join(part.read_text() for part in parts))
        self._stores |= {f"{name}.type": "PEM", f"{name}.location": str(target)}
        if self._running is not None:
            self._reload()

    def _reload(self) -> None:
        changes = [
            ConfigEntry(f"listener.name.tls.{name}", value, incremental_operation=AlterConfigOpType.SET)
            for name, value in self._stores.items()
        ]
        broker = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=changes)
        for future in self.admin.incremental_alter_configs([broker]).values():
            future.result(_TIMEOUT_S)
