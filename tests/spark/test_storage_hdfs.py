"""A target in a real HDFS: names, pages, failovers, outages and errors. `test_storage` has what all storages promise.

Most of this is nightly: the servers start in ten seconds or more.
"""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cdcd.demo.stack.artefacts import Cache
from cdcd.errors import ConfigError, StorageConflict, StorageError, StorageUnavailable
from cdcd.spark.formats.delta_access import check_delta_target
from cdcd.spark.storage import hdfs_client
from cdcd.spark.storage.hdfs import HdfsStorage
from cdcd.spark.storage.uri import Storage, open_storage
from tests.support.hdfs import HdfsServer
from tests.support.hints import hint_of

pytestmark = pytest.mark.timeout(600)  # the servers' jars are fetched at their first use on a host
HA = "dfs.ha.namenodes.shop"


@pytest.fixture(scope="session")
def pair(artefacts: Cache, stack_folder: Path) -> Iterator[HdfsServer]:
    """Yield an HDFS with two name nodes; a test leaves the first one active."""
    with HdfsServer(stack_folder / "hdfs-pair", name_nodes=2, cache=artefacts) as server:
        yield server


@pytest.fixture
def storage(hdfs: HdfsServer) -> Storage:
    return open_storage(hdfs.uri, hdfs.options())


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdfs_client, "REPEATED_FOR_S", 0)


def failure(attempt: Callable[[], Any], kind: type[StorageError] = StorageError) -> str:
    """Return the cause and the hint of the error."""
    with pytest.raises(StorageError) as raised:
        attempt()
    assert type(raised.value) is kind
    assert raised.value.__cause__ is None
    assert "org.apache" not in str(raised.value)
    return raised.value.message.partition(": ")[2] + " -> " + hint_of(str(raised.value))


# --- names ---------------------------------------------------------------------------------------------------

NAMES = [
    "a b",
    "100%",
    "%20",
    "Ärger/ü",
    "*?[x]{y}",
    "back\\slash",
    "#?&=+",
    "'\"",
    "x" * 222,
    "\u00a0",
    "日本語/表",
]


@pytest.mark.nightly
def test_a_name_is_taken_as_it_is(storage: Storage) -> None:
    for name in NAMES:
        version = storage.put_new(name, name.encode())
        storage.replace(name, b"newer", version)
    assert sorted(storage.paths()) == sorted(NAMES)
    for name in NAMES:
        assert storage.exists(name)
        assert storage.read(name) == b"newer"
    storage.delete(NAMES)
    assert [*storage.paths()] == []


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a:b", "HDFS has no such path -> correct the path"),
        ("x" * 256, "a name is too long for HDFS -> shorten"),
        ("file/below", "a folder of the path is a file -> correct the path"),
    ],
)
def test_a_name_that_hdfs_does_not_have_is_an_error(storage: Storage, name: str, text: str) -> None:
    storage.write("file", b"")
    assert failure(lambda: storage.put_new(name, b"")).startswith(text)
    assert [*storage.paths()] == ["file"]


@pytest.mark.nightly
def test_a_listing_has_all_pages(storage: Storage) -> None:
    """The server's page has 50 names."""
    paths = {f"t/{number:03d}" for number in range(130)} | {f"u{number}/x" for number in range(60)}
    for path in paths:
        storage.write(path, b"")
    assert sorted(storage.paths()) == sorted(paths)
    assert len([*storage.paths("t")]) == 130


# --- writers -------------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_a_writer_that_is_late_replaces_nothing(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has compared the version already when another one replaces it; `test_hdfs_replacements` has all orders."""
    version = storage.put_new("record.json", b"1")
    real = HdfsStorage._rename

    def late(self: HdfsStorage, source: str, path: str, *, overwrite: bool) -> None:
        monkeypatch.setattr(HdfsStorage, "_rename", real)
        self.replace("record.json", b"of the other", version)
        real(self, source, path, overwrite=overwrite)

    monkeypatch.setattr(HdfsStorage, "_rename", late)
    with pytest.raises(StorageConflict, match="another writer is replacing"):
        storage.replace("record.json", b"late", version)
    assert storage.read("record.json") == b"of the other"
    assert [*storage.paths()] == ["record.json"]


_WRITER = """
import sys
from cdcd.spark.storage.uri import open_storage
storage = open_storage(sys.argv[1])
for number in range(10_000):
    storage.write("large", bytes([number % 256]) * (3 << 20))
    print(number, flush=True)
"""


@pytest.mark.nightly
def test_a_writer_that_is_killed_leaves_complete_files(hdfs: HdfsServer) -> None:
    uri = hdfs.uri
    storage = open_storage(uri)
    for _ in range(3):
        writer = subprocess.Popen([sys.executable, "-c", _WRITER, uri], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        assert [writer.stdout.readline() for _ in range(3)]
        writer.kill()
        writer.communicate()
        data = storage.read("large")
        assert len(data) == 3 << 20
        assert len({*data}) == 1
    left = [path for path in storage.paths() if path != "large"]
    storage.delete(left)  # also those that are still open for writing
    assert [*storage.paths()] == ["large"]


# --- outages -------------------------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize("action", ["read", "put_new", "replace", "write", "paths", "delete"])
def test_a_short_outage_is_waited_for(pair: HdfsServer, action: str) -> None:
    """While a failover takes place, no name node is active."""
    storage = open_storage(pair.uri, pair.options())
    version = storage.put_new("a", b"1")
    actions: dict[str, Callable[[], Any]] = {
        "read": lambda: storage.read("a"),
        "put_new": lambda: storage.put_new("b", b"2"),
        "replace": lambda: storage.replace("a", b"2", version),
        "write": lambda: storage.write("a", b"2"),
        "paths": lambda: [*storage.paths()],
        "delete": lambda: storage.delete(["a"]),
    }
    pair.tell("standby 0")
    activation = threading.Timer(1, pair.tell, ["active 1"])
    activation.start()
    try:
        actions[action]()
    finally:
        activation.join()
        pair.tell("standby 1")
        pair.tell("active 0")
    assert storage.exists("a") == (action != "delete")


@pytest.mark.nightly
def test_no_active_name_node_is_an_error(pair: HdfsServer, impatient: None) -> None:
    storage = open_storage(pair.uri, pair.options())
    pair.tell("standby 0")
    try:
        text = failure(lambda: storage.put_new("a", b""), StorageUnavailable)
        assert text.startswith("no name node is active -> make a name node active")
    finally:
        pair.tell("active 0")
    storage.put_new("a", b"")


@pytest.mark.nightly
def test_safe_mode_is_an_error_that_passes(
    hdfs: HdfsServer, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    hdfs.tell("safe")
    try:
        with monkeypatch.context() as patched:
            patched.setattr(hdfs_client, "REPEATED_FOR_S", 0)
            text = failure(lambda: storage.write("a", b""), StorageUnavailable)
        assert text.startswith("the name node is in safe mode -> wait, or leave it")
        threading.Timer(0.5, hdfs.tell, ["unsafe"]).start()
        storage.write("a", b"1")
    finally:
        hdfs.tell("unsafe")
    assert storage.read("a") == b"1"


@pytest.mark.nightly
def test_what_was_acknowledged_is_there_after_a_kill_of_all_servers(
    hdfs: HdfsServer, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = storage.put_new("a", b"1")
    storage.replace("a", b"2", version)
    data = os.urandom(9 << 20)
    storage.write("b", data)
    hdfs.kill()
    try:
        with monkeypatch.context() as patched:
            patched.setattr(hdfs_client, "REPEATED_FOR_S", 0)
            text = failure(lambda: storage.read("a"), StorageUnavailable)
        assert text.startswith("no name node answers, or no data node -> check the address")
    finally:
        hdfs.start()
    assert storage.read("a") == b"2"
    assert storage.read("b") == data
    storage.put_new("c", b"3")


@pytest.mark.nightly
def test_a_user_without_rights_is_named(
    hdfs: HdfsServer, storage: Storage, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.write("a", b"")
    monkeypatch.setenv("HADOOP_USER_NAME", "somebody")
    stranger = open_storage(storage.uri)
    assert stranger.read("a") == b""
    for attempt in (lambda: stranger.write("b", b""), lambda: stranger.delete(["a"])):
        text = failure(attempt, StorageUnavailable)
        assert text.startswith("access is refused -> give the user (HADOOP_USER_NAME")


@pytest.mark.nightly
def test_a_file_that_no_data_node_takes_is_an_error(
    hdfs: HdfsServer, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    hdfs.tell("data-node stop")
    try:
        with monkeypatch.context() as patched:
            patched.setattr(hdfs_client, "REPEATED_FOR_S", 0)
            failure(lambda: storage.write("a", b"1"), StorageUnavailable)
        assert [*storage.paths()] == []
    finally:
        hdfs.tell("data-node start")
    storage.write("a", b"1")
    assert storage.read("a") == b"1"


@pytest.mark.parametrize("is_silent", [False, True], ids=["refuses", "is silent"])
def test_a_name_node_that_does_not_answer_is_not_waited_for_without_end(
    is_silent: bool, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_silent:
        monkeypatch.setattr(hdfs_client, "REQUEST_WITHIN_S", 0.2)
    monkeypatch.setitem(hdfs_client._LIMITS, "dfs.client.failover.max.attempts", "0")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if not is_silent:
            server.close()
        text = failure(lambda: open_storage(f"hdfs://127.0.0.1:{port}/lake").exists("a"), StorageUnavailable)
    assert text.startswith("no name node answers, or no data node -> check the address")


@pytest.mark.nightly
def test_a_name_node_that_is_silent_is_passed_over(pair: HdfsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its host may be gone without a trace, so that a connection is neither refused nor made."""
    monkeypatch.setattr(hdfs_client, "REQUEST_WITHIN_S", 2.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        nodes = f"127.0.0.1:{silent.getsockname()[1]},{pair.options()['name_nodes']}"
        open_storage(pair.uri, {"name_nodes": nodes}).put_new("a", b"1")


# --- options -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "options", "text"),
    [
        ("hdfs://n/a", {"dfs.client.use.datanode.hostnames": ""}, "did you mean dfs.client.use.datanode.hostname"),
        ("hdfs://n/a", {"namenodes": "a:1,b:2"}, "did you mean name_nodes"),
        ("hdfs://n/a", {"name_nodes": "a,b"}, "not of the form HOST:PORT"),
        ("hdfs://n:1/a", {"name_nodes": "a:1,b:2"}, "in place of the host and port"),
        ("hdfs://n/a", {"kerberos_keytab": "/etc/keytab"}, "option kerberos_principal is missing"),
    ],
)  # fmt: skip
def test_an_option_that_cannot_be_used_is_an_error(uri: str, options: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        open_storage(uri, options)


@pytest.mark.parametrize(
    ("path", "options", "text"),
    [
        ("a folder", {}, "need a path of letters"),
        ("lake", {"kerberos_principal": "spark"}, "do not have the options kerberos_principal"),
        ("lake", {"config_dir": "/etc/hadoop"}, "do not have the options config_dir"),
    ],
)
def test_a_target_that_delta_does_not_reach_is_an_error(
    path: str, options: dict[str, str], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        check_delta_target(open_storage(f"hdfs://namenode/{path}", options))


@pytest.mark.nightly
def test_a_name_service_may_be_in_the_configuration_of_hadoop(
    pair: HdfsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name nodes are as the option `name_nodes` has them; `hdfs:///PATH` is in the default file system."""
    nodes = {
        f"dfs.namenode.rpc-address.shop.n{number}": f"127.0.0.1:{port}"
        for number, port in enumerate(pair.ports)
    }
    site = {"fs.defaultFS": "hdfs://shop", HA: "n0,n1", **nodes}
    rows = "".join(
        f"<property><name>{name}</name><value>{one}</value></property>" for name, one in site.items()
    )
    (tmp_path / "core-site.xml").write_text(f"<configuration>{rows}</configuration>")
    (tmp_path / "hdfs-site.xml").write_text("<configuration></configuration>")
    path = pair.uri.removeprefix("hdfs://shop")
    open_storage(f"hdfs://shop{path}", {"config_dir": str(tmp_path)}).put_new("a", b"1")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    assert open_storage(f"hdfs://{path}").read("a") == b"1"
    assert open_storage(f"hdfs://shop{path}/").read("a") == b"1"


def test_a_host_without_a_port_is_a_name_node_at_hadoops_port(
    impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hdfs_client, "DEFAULT_PORT", 1)
    monkeypatch.setitem(hdfs_client._LIMITS, "dfs.client.failover.max.attempts", "0")
    text = failure(lambda: open_storage("hdfs://127.0.0.1/lake").read("a"), StorageUnavailable)
    assert text.startswith("no name node answers")


def test_a_folder_of_the_configuration_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    storage = open_storage("hdfs://namenode/lake", {"config_dir": str(tmp_path / "none")})
    with pytest.raises(ConfigError, match="config_dir does not exist on this host"):
        storage.read("a")


def test_a_configuration_that_is_no_xml_is_an_error(tmp_path: Path, impatient: None) -> None:
    for name in ("core-site.xml", "hdfs-site.xml"):
        (tmp_path / name).write_text("<configuration>")
    storage = open_storage("hdfs://namenode/lake", {"config_dir": str(tmp_path)})
    assert failure(lambda: storage.read("a")).startswith("the configuration of Hadoop is not XML -> correct")


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    with pytest.raises(StorageError, match=r"package hdfs-native.*extra `spark-hdfs`"):
        open_storage("hdfs://namenode/lake")


@pytest.mark.nightly
def test_an_executor_gets_a_storage_without_its_connection(storage: Storage) -> None:
    storage.put_new("a", b"1")
    assert pickle.loads(pickle.dumps(storage)).read("a") == b"1"
