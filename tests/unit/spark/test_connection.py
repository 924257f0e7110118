"""Options and the daemon's configuration to one connection, which has no secret in any form."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from cdcd.errors import ConfigError, SecretUnreadable
from cdcd.redaction import clean
from cdcd.registry.settings import client_properties
from cdcd.spark.clients.connection import Connection, RegistryAccess, TopicAccess
from cdcd.spark.clients.connection_options import connection_from
from cdcd.spark.clients.secret_reference import SecretReference, UserInfo, resolve

CANARY = "canary-5f3a91"
PLAIN = {"brokers": "kafka:9092", "prefix": "shop"}


def _configuration(folder: Path, registry: str, sink: str = "") -> str:
    path = folder / "cdcd.yaml"
    (folder / "kafka").write_text(f"{CANARY}-kafka\n")
    (folder / "registry").write_text(f"{CANARY}-registry\n")
    path.write_text(f"""\
name: shop
source: {{dsn: "postgresql://cdcd:{CANARY}@db/shop", password_file: /nowhere/postgres}}
sink:
  bootstrap_servers: kafka-0:9093,kafka-1:9093
  properties: {{security.protocol: SASL_SSL, sasl.username: cdcd, linger.ms: 5, message.max.bytes: 9000000{sink}}}
  secret_files: {{sasl.password: {folder}/kafka}}
registry: {registry}
""")
    return str(path)


def _problems(options: dict[str, str], *others: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        connection_from(options, others, environ={})
    assert CANARY not in str(caught.value)
    for problem in caught.value.problems:
        assert problem in str(caught.value), "Spark shows only the text of the error"
    return [problem.removeprefix("option ") for problem in caught.value.problems]


# --- from the daemon's configuration -----------------------------------------------------------------------------


def test_the_daemons_configuration_is_enough(tmp_path: Path) -> None:
    registry = f'{{url: "https://a, https://b", username: cdcd, password_file: {tmp_path}/registry}}'
    made = connection_from({"config": _configuration(tmp_path, registry)}, environ={})
    assert (made.brokers, made.prefix) == ("kafka-0:9093,kafka-1:9093", "shop")
    assert dict(made.properties) == {
        "sasl.password": SecretReference("file", f"{tmp_path}/kafka"),
        "sasl.username": "cdcd",
        "security.protocol": "SASL_SSL",
    }, "a producer's properties are none of a reader's"
    assert made.read_properties()["sasl.password"] == f"{CANARY}-kafka"
    assert isinstance(made.registry, RegistryAccess)
    used = client_properties(made.registry.settings())
    assert used["url"] == "https://a,https://b"
    assert used["basic.auth.user.info"] == f"cdcd:{CANARY}-registry"


@pytest.mark.parametrize(
    ("registry", "expected"),
    [
        ("{{url: 'https://a', token_file: {0}/registry}}", {"bearer.auth.token": f"{CANARY}-registry"}),
        (
            "{{url: 'https://a', properties: {{ssl.ca.location: {0}/kafka}},"
            " secret_files: {{ssl.key.password: {0}/registry}}}}",
            {"ssl.key.password": f"{CANARY}-registry"},
        ),
        (
            f"{{{{url: 'https://a', username: cdcd, password: {CANARY}}}}}",
            {"basic.auth.user.info": f"cdcd:{CANARY}"},
        ),
        (
            f"{{{{url: 'https://a', properties: {{{{ssl.key.password: {CANARY}}}}}}}}}",
            {"ssl.key.password": CANARY},
        ),
        (
            f"{{{{url: 'https://a', properties: {{{{proxy: 'http://u:{CANARY}@proxy'}}}}}}}}",
            {"proxy": f"http://u:{CANARY}@proxy"},
        ),
    ],
    ids=["token", "password of a key", "password in the file", "property in the file", "proxy"],
)
def test_each_authentication_of_the_registry(tmp_path: Path, registry: str, expected: dict[str, str]) -> None:
    made = connection_from({"config": _configuration(tmp_path, registry.format(tmp_path))}, environ={})
    assert isinstance(made.registry, RegistryAccess)
    assert expected.items() <= client_properties(made.registry.settings()).items()
    _has_no_secret(made)


def test_a_password_in_a_variable_stays_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDCD_REGISTRY__PASSWORD", CANARY)
    path = _configuration(tmp_path, "{url: 'https://a', username: cdcd}")
    made = connection_from({"config": path})
    assert made.registry == RegistryAccess(
        "https://a",
        (("basic.auth.user.info", UserInfo("cdcd", SecretReference("env", "CDCD_REGISTRY__PASSWORD"))),),
    )
    _has_no_secret(made)


def test_a_secret_in_the_file_is_read_there_at_each_use(tmp_path: Path) -> None:
    path = _configuration(tmp_path, "none", f", ssl.key.password: {CANARY}")
    made = pickle.loads(pickle.dumps(connection_from({"config": path}, environ={})))
    _has_no_secret(made)
    assert made.read_properties()["ssl.key.password"] == CANARY
    Path(path).write_text(Path(path).read_text().replace(CANARY, "rotated"))
    assert made.read_properties()["ssl.key.password"] == "rotated"
    Path(path).unlink()
    with pytest.raises(SecretUnreadable, match=rf"cannot be read.*file={path} host="):
        made.read_properties()


def test_without_a_registry_the_schemas_are_in_the_topic(tmp_path: Path) -> None:
    made = connection_from({"config": _configuration(tmp_path, "none")}, environ={})
    assert made.schemas == TopicAccess(made.brokers, "shop.__schemas", made.properties)
    other = connection_from(
        {"config": _configuration(tmp_path, "none"), "registry": "http://admin:8080"}, environ={}
    )
    assert other.schemas == RegistryAccess("http://admin:8080")
    assert connection_from(PLAIN).schemas is None


def test_problems_of_the_configuration_and_of_the_options_come_together(tmp_path: Path) -> None:
    path = _configuration(tmp_path, "none").replace("cdcd.yaml", "other.yaml")
    found = _problems({"config": path, "brokerz": "a:1"})
    assert found == [
        "brokerz is unknown - did you mean brokers?",
        f"{path}: cannot be read: No such file or directory",
    ]


# --- from options ------------------------------------------------------------------------------------------------


def test_options_override_the_configuration(tmp_path: Path) -> None:
    registry = f"{{url: 'https://a', token_file: {tmp_path}/registry}}"
    options = {
        "config": _configuration(tmp_path, registry),
        "kafka.bootstrap.servers": "other:9092",
        "kafka.sasl.password": "env:KAFKA_PASSWORD",
        "Prefix": "shop.eu",
        "basic.auth.user.info": "spark:file:/run/password",
    }
    made = connection_from(options, environ={})
    assert (made.brokers, made.prefix) == ("other:9092", "shop.eu")
    assert dict(made.properties)["sasl.password"] == SecretReference("env", "KAFKA_PASSWORD")
    assert dict(made.properties)["sasl.username"] == "cdcd"
    user = UserInfo("spark", SecretReference("file", "/run/password"))
    assert made.registry == RegistryAccess("https://a", (("basic.auth.user.info", user),)), (
        "a password replaces the token"
    )


def test_confluents_usual_names_are_known() -> None:
    options = {
        **PLAIN,
        "schema.registry.url": "https://a/, https://b",
        "basic.auth.credentials.source": "USER_INFO",
        "basic.auth.user.info": "file:/run/user-info",
        "schema.registry.ssl.ca.location": "/etc/ca.crt",
        "schema.registry.timeout": "5",
    }
    made = connection_from(options)
    assert made.registry == RegistryAccess(
        "https://a,https://b",
        (
            ("basic.auth.user.info", SecretReference("file", "/run/user-info")),
            ("ssl.ca.location", "/etc/ca.crt"),
            ("timeout", "5"),
        ),
    )
    inherited = {
        **PLAIN,
        "registry": "https://a",
        "basic.auth.credentials.source": "SASL_INHERIT",
        "kafka.sasl.username": "cdcd",
        "kafka.sasl.password": "env:KAFKA_PASSWORD",
    }
    user = UserInfo("cdcd", SecretReference("env", "KAFKA_PASSWORD"))
    assert connection_from(inherited).registry == RegistryAccess(
        "https://a", (("basic.auth.user.info", user),)
    )


def test_every_unknown_option_is_named_with_its_nearest_one() -> None:
    options = {
        **PLAIN,
        "registry": "https://a",
        "kafka.sasl.usernam": "x",
        "kafka.sasl.jaas.config": CANARY,
        "kafka.isolation.level": "read_uncommitted",
        "kafka.error_cb": "x",
        "kafka.fetch.min.bytes": "1",
        "maxrow": "1",
        "schema.registry.ssl.truststore.location": "x",
        "basic.auth.user.inf": "x",
        "something else": "x",
    }
    assert _problems(options, "maxRows") == [
        "kafka.sasl.usernam is unknown - did you mean kafka.sasl.username?",
        "kafka.sasl.jaas.config is unknown - did you mean kafka.sasl.username and kafka.sasl.password?",
        "kafka.isolation.level cannot be set - readers get committed records only",
        "kafka.error_cb is unknown",
        "maxrow is unknown - did you mean maxRows?",
        "schema.registry.ssl.truststore.location is unknown - did you mean schema.registry.ssl.ca.location, a PEM "
        "file?",
        "basic.auth.user.inf is unknown - did you mean basic.auth.user.info?",
        "something else is unknown",
    ]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"prefix": "shop"}, "brokers is required, or config with the path of the daemon's configuration"),
        (
            {**PLAIN, "kafka.bootstrap.servers": "b:1"},
            "options brokers and kafka.bootstrap.servers are the same option, but have different values",
        ),
        ({**PLAIN, "registry": "registry:8081"}, "schema.registry.url is not an http or https URL"),
        ({**PLAIN, "registry": "https://a, ftp://b"}, "schema.registry.url is not an http or https URL"),
        ({**PLAIN, "basic.auth.user.info": "file:/a"}, "basic.auth.user.info applies to a registry"),
        (
            {**PLAIN, "registry": "https://a", "basic.auth.credentials.source": "URL"},
            "basic.auth.credentials.source has to be USER_INFO or SASL_INHERIT",
        ),
        (
            {**PLAIN, "registry": "https://a", "basic.auth.credentials.source": "SASL_INHERIT"},
            "basic.auth.credentials.source SASL_INHERIT needs kafka.sasl.username and kafka.sasl.password",
        ),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_a_mistake_is_named(options: dict[str, str], problem: str) -> None:
    found = _problems(options)
    assert [
        one for one in found if one.removeprefix("options").startswith(problem.removeprefix("s "))
    ] or any(problem in one for one in found), found


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("kafka.sasl.password", "write file:PATH or env:NAME"),
        ("kafka.ssl.key.pem", "write file:PATH or env:NAME"),
        ("kafka.sasl.oauthbearer.client.secret", "write file:PATH or env:NAME"),
        ("schema.registry.ssl.key.password", "write file:PATH or env:NAME"),
        ("bearer.auth.token", "write file:PATH or env:NAME"),
        ("basic.auth.user.info", "write USER:file:PATH or USER:env:NAME"),
        ("schema.registry.basic.auth.user.info", "write USER:file:PATH or USER:env:NAME"),
    ],
)
def test_a_secret_in_clear_is_refused(name: str, advice: str) -> None:
    """Also where Spark's own redaction covers the option's name."""
    value = f"cdcd:{CANARY}" if name.endswith("info") else CANARY
    (problem,) = _problems({**PLAIN, "registry": "https://a", name: value})
    assert problem.startswith(f"{name} is a secret in clear")
    assert advice in problem


def test_credentials_in_a_url_are_refused() -> None:
    (problem,) = _problems({**PLAIN, "schema.registry.url": f"https://cdcd:{CANARY}@registry"})
    assert "set basic.auth.user.info" in problem
    for proxy in (f"http://u:{CANARY}@p", f"u:{CANARY}@p:3128", f"//{CANARY}@p", f"http://u:p/{CANARY}@p"):
        (problem,) = _problems({**PLAIN, "registry": "https://a", "schema.registry.proxy": proxy})
        assert problem.startswith("schema.registry.proxy is a secret in clear")
    for query in (f"?apikey={CANARY}", f"#{CANARY}"):
        (problem,) = _problems({**PLAIN, "registry": f"https://a, https://b{query}"})
        assert problem.startswith("schema.registry.url has a query or a fragment")
    for name in ("brokers", "kafka.bootstrap.servers"):
        (problem,) = _problems({"prefix": "shop", name: f"u:{CANARY}@kafka:9092"})
        assert problem.startswith(f"{name} has credentials in it - set kafka.sasl.username")


def test_an_extension_with_the_name_of_a_secret_is_refused() -> None:
    name = "kafka.sasl.oauthbearer.extensions"
    (problem,) = _problems({**PLAIN, name: f"logicalCluster=lkc-1,api_token={CANARY}"})
    assert problem.startswith(f"{name} is a secret in clear")
    assert "if it was in a statement of SQL" in problem
    plain = "logicalCluster=lkc-1,identityPoolId=pool-1"
    assert dict(connection_from({**PLAIN, name: plain}, environ={}).properties)[name[6:]] == plain


@pytest.mark.parametrize("name", ["plugin.library.paths", "ssl.engine.location", "sasl.kerberos.kinit.cmd"])
def test_what_runs_other_code_is_refused(name: str) -> None:
    (problem,) = _problems({**PLAIN, f"kafka.{name}": "/tmp/x.so"})
    assert "run a program or a library" in problem


def test_the_paths_of_a_relative_configuration_are_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors have other working directories than the driver."""
    (tmp_path / "ca.crt").write_text("x")
    (tmp_path / "password").write_text(f"{CANARY}\n")
    more = f", ssl.ca.location: ca.crt, sasl.password: {CANARY}"
    path = Path(_configuration(tmp_path, "{url: 'https://a', username: u, password_file: password}", more))
    path.write_text(path.read_text().replace(f"  secret_files: {{sasl.password: {tmp_path}/kafka}}\n", ""))
    monkeypatch.chdir(tmp_path)
    made = connection_from({"config": "cdcd.yaml"}, environ={})
    monkeypatch.chdir("/")
    assert isinstance(made.registry, RegistryAccess)
    assert client_properties(made.registry.settings())["basic.auth.user.info"] == f"u:{CANARY}"
    assert made.read_properties()["sasl.password"] == CANARY
    assert made.read_properties()["ssl.ca.location"] == f"{tmp_path}/ca.crt"
    path.unlink()
    with pytest.raises(SecretUnreadable) as raised:
        made.read_properties()
    assert f"file={path}" in str(raised.value)
    assert "***" not in str(raised.value)


# --- what a connection shows -------------------------------------------------------------------------------------


def _has_no_secret(made: Connection) -> None:
    options = made.options()
    for shown in (repr(made), str(made), repr(options), pickle.dumps(made).decode("latin-1")):
        assert CANARY not in shown
    assert pickle.loads(pickle.dumps(made)) == made
    assert hash(pickle.loads(pickle.dumps(made))) == hash(made)
    assert connection_from(options, environ={}) == made


def test_a_connection_is_its_options() -> None:
    options = {
        **PLAIN,
        "registry": "https://a,https://b",
        "kafka.sasl.username": "cdcd",
        "kafka.sasl.password": "file:/run/kafka",
        "schema.registry.basic.auth.user.info": "cdcd:env:REGISTRY_PASSWORD",
        "schema.registry.ssl.key.password": "config:/etc/cdcd.yaml#registry/properties/ssl.key.password",
    }
    made = connection_from(options)
    _has_no_secret(made)
    assert made.options() == options


def test_what_was_read_is_neither_shown_nor_pickled(tmp_path: Path) -> None:
    (tmp_path / "password").write_text(CANARY)
    made = connection_from({**PLAIN, "kafka.sasl.password": f"file:{tmp_path}/password"})
    read = made.read_properties()
    assert read == {"sasl.password": CANARY}
    assert CANARY not in f"{read!r} {read}"
    with pytest.raises(TypeError, match="not serialised"):
        pickle.dumps(read)


def test_a_missing_secret_is_reported_with_its_option_and_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "worker-7")
    monkeypatch.delenv("KAFKA_PASSWORD", raising=False)
    absent = tmp_path / "absent"
    cases = {
        f"file:{absent}": f"file={absent} reason=No such file or directory host=worker-7",
        "env:KAFKA_PASSWORD": "variable=KAFKA_PASSWORD host=worker-7",
        f"config:{absent}#sink/properties/sasl.password": f"file={absent} host=worker-7",
    }
    for reference, where in cases.items():
        made = connection_from({**PLAIN, "kafka.sasl.password": reference})
        with pytest.raises(SecretUnreadable) as caught:
            made.read_properties()
        assert where in str(caught.value)
        assert "host" in caught.value.advice or "executor" in caught.value.advice
    with pytest.raises(
        SecretUnreadable, match=r"kafka\.ssl\.ca\.location names does not exist .*host=worker-7"
    ):
        resolve((("ssl.ca.location", str(absent)),), "kafka.")
    assert resolve((("ssl.ca.location", "probe"),), "kafka.")


@pytest.mark.parametrize(
    "name",
    [
        "kafka.sasl.oauthbearer.extensions",
        "kafka.sasl.oauthbearer.token.endpoint.url",
        "kafka.sasl.oauthbearer.assertion.private.key.pem",
        "kafka.sasl.username",
        "bearer.auth.issuer.endpoint.url",
        "schema.registry.proxy",
    ],
)
def test_what_may_have_a_secret_takes_a_reference(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where only some values are secrets: the error of such a value in clear says to write a reference."""
    monkeypatch.setenv("OF_THE_LOGIN", f"api_token={CANARY}")
    made = connection_from({**PLAIN, "registry": "https://a", name: "env:OF_THE_LOGIN"}, environ={})
    assert isinstance(made.registry, RegistryAccess)
    of_kafka = name.startswith("kafka.")
    bare = name.removeprefix("kafka." if of_kafka else "schema.registry.")
    assert str(dict(made.properties if of_kafka else made.registry.properties)[bare]) == "env:OF_THE_LOGIN"
    resolved = made.read_properties() if of_kafka else client_properties(made.registry.settings())
    assert resolved[bare] == f"api_token={CANARY}"
    assert CANARY not in repr(made) + repr(made.read_properties())


def test_the_user_of_a_proxy_that_was_read_is_struck_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client's error may have a part of the value only."""
    monkeypatch.setenv("PROXY", f"user:{CANARY}@proxy:3128")
    options = {**PLAIN, "registry": "https://a", "schema.registry.proxy": "env:PROXY"}
    made = connection_from(options, environ={})
    assert isinstance(made.registry, RegistryAccess)
    made.registry.settings().read_properties()
    assert clean(f"no tunnel for {CANARY}") == "no tunnel for ***"
