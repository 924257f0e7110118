"""Planted secrets are never shown: not in a repr, a dump, an error or `config show`."""

from __future__ import annotations

import pickle
import traceback
from pathlib import Path

import pytest

from cdcd.config import load
from cdcd.config.sample import effective_yaml
from cdcd.config.values import Secret, redact
from cdcd.errors import ConfigError
from cdcd.property_names import has_user, is_secret_property
from cdcd.redaction import clean
from cdcd.registry.settings import client_properties

CANARY = "canary-5f3a91"


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(CANARY)
    return path


def every_secret(secret_file: Path, dsn_password: str = "") -> str:
    return f"""\
name: shop
source:
  dsn: postgresql://cdcd{dsn_password}@db/shop
  {"" if dsn_password else f"password: {CANARY}"}
  ssl_password_file: {secret_file}
sink:
  bootstrap_servers: kafka:9092
  properties:
    sasl.password: {CANARY}
    ssl.key.password: {CANARY}
    ssl.key.pem: {CANARY}
    sasl.oauthbearer.client.secret: {CANARY}
    sasl.oauthbearer.config: {CANARY}
    sasl.pasword: {CANARY}
  secret_files: {{ssl.keystore.password: {secret_file}}}
registry:
  {{url: "http://registry", username: u, password: {CANARY}, properties: {{bearer.auth.token: {CANARY}}},
   secret_files: {{ssl.key.password: {secret_file}}}}}
"""


@pytest.mark.parametrize("dsn_password", ["", f":{CANARY}"])
def test_no_secret_is_in_a_repr_a_dump_or_show(dsn_password: str, secret_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "prod.yaml"
    path.write_text(every_secret(secret_file, dsn_password))
    loaded = load(path, {})
    config = loaded.config
    shown = [
        repr(loaded),
        str(config),
        repr(config.model_dump()),
        config.model_dump_json(),
        effective_yaml(loaded),
        repr(config.source_settings()),
        repr(config.source_settings().read_password),
        repr(config.sink_settings()),
        str(config.sink.read_properties()),
        repr(config.registry_settings()),
        f"{config.registry.password}",
    ]
    assert [text for text in shown if CANARY in text] == []
    assert config.registry_settings().read_password() == CANARY
    assert config.source_settings().read_password() == CANARY
    assert config.source_settings().read_ssl_password() == CANARY
    assert config.registry_settings().read_properties()["ssl.key.password"] == CANARY
    assert config.sink_settings().properties["ssl.keystore.password"] == CANARY
    secret_file.write_text("rotated")
    assert config.source_settings().read_ssl_password() == "rotated"
    assert config.registry_settings().read_properties()["ssl.key.password"] == "rotated"


def test_no_secret_is_in_an_error_or_its_traceback(secret_file: Path, tmp_path: Path) -> None:
    texts = [
        every_secret(secret_file).replace("name: shop", f"name: shop\nunknown: {CANARY}"),
        every_secret(secret_file).replace(f"  password: {CANARY}", f"  pasword: {CANARY}"),
        every_secret(secret_file).replace(f"  password: {CANARY}", f"  password: [{CANARY}]"),
        every_secret(secret_file).replace(f"  password: {CANARY}", f"  password: *{CANARY}"),
        every_secret(secret_file).replace(f"  password: {CANARY}", f"  password: !{CANARY} x"),
        every_secret(secret_file).replace(f"  password: {CANARY}", f'  password: "{CANARY}'),
        every_secret(secret_file).replace(
            f"  password: {CANARY}", f"  password: {CANARY}\n  password: {CANARY}"
        ),
        every_secret(secret_file).replace("cdcd@db/shop", f"cdcd:{CANARY}@x@db/shop"),
        every_secret(secret_file).replace("cdcd@db/shop", f"cdcd:{CANARY}@db/shop"),
        every_secret(secret_file).replace("http://registry", f"http://u:{CANARY}@registry"),
        every_secret(secret_file).replace("kafka:9092", f"{CANARY}@kafka"),
    ]
    path = tmp_path / "prod.yaml"
    for text in texts:
        path.write_text(text)
        with pytest.raises(ConfigError) as caught:
            load(path, {"CDCD_REGISTRY__PASSWORD": CANARY})
        reported = "\n".join(
            [*caught.value.problems, str(caught.value), *traceback.format_exception(caught.value)]
        )
        assert CANARY not in reported


def test_a_secret_in_a_variable_is_not_in_the_error_about_it(tmp_path: Path) -> None:
    path = tmp_path / "prod.yaml"
    path.write_text("name: shop\n")
    environ = {
        "CDCD_SOURCE__DSN": f"postgresql://u:{CANARY}@db",
        "CDCD_SINK__PROPERTIES": CANARY,
        "CDCD_PASSWORD": CANARY,
        "CDCD_SOURCE__PASSWORD_FILE_": CANARY,
    }
    with pytest.raises(ConfigError) as caught:
        load(path, environ)
    assert CANARY not in "".join(caught.value.problems)
    assert len(caught.value.problems) == 6


def test_a_secret_hides_in_every_form_of_text() -> None:
    secret = Secret(CANARY)
    assert {str(secret), repr(secret), f"{secret}", f"{secret:>3}", "%s" % secret} == {"***"}  # noqa: UP031
    with pytest.raises(TypeError):
        pickle.dumps(secret)


@pytest.mark.parametrize(
    ("name", "is_secret"),
    [
        ("sasl.password", True),
        ("sasl.oauthbearer.client.secret", True),
        ("ssl.keystore.password", True),
        ("basic.auth.user.info", True),
        ("sasl.username", False),
        ("ssl.key.location", False),
        ("sasl.oauthbearer.token.endpoint.url", False),
        ("bearer.auth.credentials.source", False),
        ("linger.ms", False),
    ],
)
def test_properties_that_hold_secrets_are_known_by_their_names(name: str, is_secret: bool) -> None:
    assert is_secret_property(name) is is_secret


@pytest.mark.parametrize(
    ("name", "value", "is_secret"),
    [
        ("proxy", "http://proxy:3128", False),
        ("proxy", "http://user:word@proxy:3128", True),
        ("proxy", "user:word@proxy:3128", True),
        ("proxy", "//word@proxy:3128", True),
        ("sasl.oauthbearer.token.endpoint.url", "user:word@issuer/token", True),
        ("client.id", "https://user:word@host", True),
        ("sasl.username", "user@example.com", False),
        ("sasl.kerberos.principal", "cdcd@EXAMPLE.COM", False),
    ],
)
def test_an_address_with_a_user_is_hidden(name: str, value: str, is_secret: bool) -> None:
    assert has_user(name, value) is is_secret
    assert redact({name: value})[name] == ("***" if is_secret else value)


def test_every_secret_that_was_read_is_struck_out_of_any_text(tmp_path: Path) -> None:
    """A server's error or a client library may repeat a secret."""
    named = (
        "dsn",
        "sslpassword",
        "ssl_file",
        "sasl",
        "key",
        "pem",
        "oauth",
        "keystore",
        "registry",
        "token",
        "proxy",
    )
    secrets = {name: f"canary-{name}-5f3a91" for name in named}
    files = {name: tmp_path / name for name in ("ssl_file", "keystore", "token")}
    for name, path in files.items():
        path.write_text(secrets[name] + "\n")
    path = tmp_path / "prod.yaml"
    path.write_text(f"""\
name: shop
source:
  dsn: postgresql://cdcd:{secrets["dsn"]}@db/shop?oauth_client_secret={secrets["sslpassword"]}
  ssl_password_file: {files["ssl_file"]}
sink:
  bootstrap_servers: kafka:9092
  properties:
    sasl.password: {secrets["sasl"]}
    ssl.key.password: {secrets["key"]}
    ssl.key.pem: {secrets["pem"]}
    sasl.oauthbearer.client.secret: {secrets["oauth"]}
  secret_files: {{ssl.keystore.password: {files["keystore"]}}}
registry: {{url: "http://registry", properties: {{bearer.auth.client.secret: {secrets["registry"]},
  proxy: "user:{secrets["proxy"]}@proxy:3128"}},
  token_file: {files["token"]}}}
""")
    config = load(path, {}).config
    assert secrets["proxy"] not in repr(config) + str(config.model_dump())
    config.source_settings().read_ssl_password()
    config.sink_settings()
    client_properties(config.registry_settings())
    reported = ", ".join(f"{name}: {value}" for name, value in secrets.items())
    assert clean(reported) == ", ".join(f"{name}: ***" for name in secrets)
