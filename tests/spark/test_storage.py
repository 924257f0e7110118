"""The files of a target, by one contract: in a local folder, in a bucket of a real S3 API, and in Azure's storage.

The buckets are nightly: their servers take minutes to build at their first use on a host.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdcd.demo.stack.s3 import S3Server
from cdcd.errors import ConfigError, StorageConflict, StorageError, TableFileMissing
from cdcd.spark.storage import cloud as storage_cloud
from cdcd.spark.storage import local as storage_local
from cdcd.spark.storage.options import storage_options
from cdcd.spark.storage.uri import Storage, Version, open_storage
from cdcd.spark.tables.data_file import opened, opened_in_parts
from cdcd.spark.target.commit_log import LATEST, path_of, read_latest
from cdcd.spark.target.left_files import sweep
from cdcd.spark.target.ownership import refuse_anothers
from cdcd.spark.target.target_writer import take_over
from cdcd.spark.target.versions import TargetVersion
from tests.spark.conftest import S3_PASSWORD
from tests.support.azure import AzureServer
from tests.support.hdfs import HdfsServer
from tests.support.hints import hint_of
from tests.support.nightly import nightly, nightly_except

pytestmark = pytest.mark.timeout(1200)  # the S3 server is built at its first use on a host


@pytest.fixture(params=["local", nightly("s3"), nightly("azure"), nightly("hdfs")])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, str]]:
    """A target, and its options."""
    if request.param == "local":
        return str(tmp_path / "target"), {}
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("s3")
        return request.getfixturevalue("bucket") + "/the/target", server.options()
    if request.param == "hdfs":
        cluster: HdfsServer = request.getfixturevalue("hdfs")
        return cluster.uri, cluster.options()
    azure: AzureServer = request.getfixturevalue("azure")
    return azure.create_container(f"c{uuid.uuid4().hex[:12]}") + "/the/target", azure.options()


@pytest.fixture
def storage(place: tuple[str, dict[str, str]]) -> Storage:
    return open_storage(*place)


@pytest.mark.parametrize("in_parts", [False, True])
def test_a_data_file_is_missing_only_where_there_are_records(storage: Storage, in_parts: bool) -> None:
    """Without them all files are: of a disk that is not mounted, or of a target that was removed."""

    def open_file() -> None:
        if in_parts:
            with opened_in_parts(storage, "_data/t/a.parquet"):
                pass
        else:
            opened(storage, "_data/t/a.parquet")

    with pytest.raises(StorageError) as raised:
        open_file()
    assert type(raised.value) is StorageError
    storage.put_new(LATEST, b'{"number": 1}')
    with pytest.raises(TableFileMissing, match=r"_data/t/a\.parquet"):
        open_file()


def version_of(storage: Storage, path: str) -> Version:
    found = storage.read_versioned(path)
    assert found is not None
    return found.version


@pytest.mark.parametrize("size", [0, 1, storage_cloud.PART_BYTES + 7], ids=["empty", "a byte", "two parts"])
def test_a_file_is_read_as_it_was_written(storage: Storage, size: int) -> None:
    data = os.urandom(size)
    storage.write("shop.public.Ärger/a b.parquet", memoryview(data).cast("b"))  # as Arrow's buffers are
    assert storage.read("shop.public.Ärger/a b.parquet") == data
    storage.write("shop.public.Ärger/a b.parquet", b"newer")
    assert storage.read("shop.public.Ärger/a b.parquet") == b"newer"


def test_a_part_of_a_file_is_read(storage: Storage) -> None:
    data = os.urandom(9 << 20)  # two blocks of HDFS
    storage.write("large", data)
    with storage.open("large") as opened:
        assert opened.seek(-5, os.SEEK_END) == len(data) - 5
        assert opened.read() == data[-5:]
        opened.seek(8_388_600)
        assert opened.read(20) == data[8_388_600:8_388_620]
        assert opened.tell() == 8_388_620


def test_a_file_that_is_not_there(storage: Storage) -> None:
    for path in ("none", "no/folder"):
        assert storage.read_versioned(path) is None
        assert not storage.exists(path)
        with pytest.raises(StorageError, match="open the mirror again"):
            storage.read(path)
    storage.write("one", b"")
    assert storage.exists("one")
    assert [*storage.paths("no")] == []


def test_a_file_is_created_once(storage: Storage) -> None:
    storage.put_new("record.json", b"1")
    with pytest.raises(StorageConflict, match="another writer has created") as raised:
        storage.put_new("record.json", b"2")
    assert storage.uri in str(raised.value)
    assert storage.read("record.json") == b"1"


def test_a_version_is_replaced_once(storage: Storage) -> None:
    first = storage.put_new("record.json", b"1")
    assert first == version_of(storage, "record.json")
    second = storage.replace("record.json", b"2", first)
    with pytest.raises(StorageConflict, match="another writer has replaced"):
        storage.replace("record.json", b"3", first)
    assert storage.read("record.json") == b"2"
    storage.replace("record.json", b"3", second)
    storage.delete(["record.json"])
    with pytest.raises(StorageConflict):
        storage.replace("record.json", b"4", version_of_deleted := second)
    assert version_of_deleted
    assert storage.read_versioned("record.json") is None


def test_files_are_listed_and_deleted(storage: Storage) -> None:
    assert [*storage.paths()] == []
    for path in ("record.json", "t/1.parquet", "t/2.parquet", "tt/1.parquet", "_checkpoint/a/b"):
        storage.write(path, b"x")
    assert sorted(storage.paths()) == [
        "_checkpoint/a/b", "record.json", "t/1.parquet", "t/2.parquet", "tt/1.parquet",
    ]  # fmt: skip
    assert sorted(storage.paths("t")) == ["t/1.parquet", "t/2.parquet"]
    storage.delete(["t/1.parquet", "never/was", "record.json"])
    storage.delete([])
    assert sorted(storage.paths()) == ["_checkpoint/a/b", "t/2.parquet", "tt/1.parquet"]


@pytest.mark.parametrize("path", ["../a", "/etc/passwd", "t/../../a", "", "t//a", "./a", "a\0"])
def test_a_path_that_leads_out_of_the_target_is_refused(storage: Storage, path: str) -> None:
    """A record is an input: somebody may have written it."""
    attempts: list[Callable[[], Any]] = [
        lambda: storage.read(path),
        lambda: storage.write(path, b""),
        lambda: storage.put_new(path, b""),
        lambda: storage.delete([path]),
    ]
    for attempt in attempts:
        with pytest.raises(StorageError, match="leads out of the target"):
            attempt()


def test_a_file_that_is_too_large_is_not_read(storage: Storage) -> None:
    storage.write("large", b"x" * 101)
    for read in (storage.read, storage.read_versioned):
        assert read("large", max_bytes=101)
        with pytest.raises(StorageError, match=r"too large.*limit=100"):
            read("large", max_bytes=100)


# --- races ---------------------------------------------------------------------------------------------------


def raced(writers: int, write: Callable[[int], object]) -> list[int]:
    """Run the writers at once; return those that succeeded, where all others had a conflict."""
    start = threading.Barrier(writers)
    won: list[int] = []
    failed: list[Exception] = []

    def run(number: int) -> None:
        start.wait()
        try:
            write(number)
            won.append(number)
        except StorageConflict:
            pass
        except StorageError as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(writers)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert failed == []
    return won


def test_of_writers_at_once_one_creates_and_one_replaces(storage: Storage) -> None:
    for turn in range(25):
        path = f"{turn}"
        won = raced(4, lambda number: storage.put_new(path, b"new %d" % number))  # noqa: B023 - it ends in the turn
        assert [storage.read(path)] == [b"new %d" % number for number in won]
        version = version_of(storage, path)
        won = raced(4, lambda number: storage.replace(path, b"%d" % number, version))  # noqa: B023
        assert [storage.read(path)] == [b"%d" % number for number in won]
    assert len([*storage.paths()]) == 25, "no temporary file is left"


def racing_command(target: str, options: dict[str, str], *, rounds: int) -> list[str]:
    pairs = [f"{name}={value}" for name, value in options.items()]
    return [sys.executable, "-m", "tests.spark.racing", target, str(rounds), *pairs]


def test_of_processes_that_publish_a_version_one_succeeds_each_time(
    storage: Storage, place: tuple[str, dict[str, str]]
) -> None:
    command = racing_command(*place, rounds=120)
    racing = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    try:
        for one in racing:
            assert one.stdout is not None
            assert one.stdout.readline() == "ready\n"
        for one in racing:
            assert one.stdin is not None
            one.stdin.write("go\n")
            one.stdin.flush()
        published = [json.loads(one.communicate(timeout=120)[0]) for one in racing]
    finally:
        for one in racing:
            one.kill()
    last = read_latest(storage)
    assert last is not None
    assert sorted(published[0] + published[1]) == [*range(1, last.number + 1)], "one writer for each version"
    assert all(published), "both have published"


# --- the commit log ------------------------------------------------------------------------------------------


def test_who_takes_over_a_target_shuts_out_the_earlier_writer(storage: Storage) -> None:
    first = take_over(storage, TargetVersion("shop", 4))
    found = read_latest(storage)
    assert found is not None
    assert found == first.version
    second = take_over(storage, found)
    with pytest.raises(StorageConflict, match="another mirror has taken over") as raised:
        first.publish(found)
    assert "stop the other one" in hint_of(str(raised.value))
    assert read_latest(storage) == second.version


def test_two_that_take_over_at_once_do_not_both_write(storage: Storage) -> None:
    for _ in range(10):
        found = read_latest(storage) or TargetVersion("shop", 4)
        assert len(raced(3, lambda _, found=found: take_over(storage, found))) == 1


@pytest.mark.parametrize("error", [StorageConflict, StorageError])
def test_a_publication_whose_answer_is_lost_has_taken_place(
    storage: Storage, error: type[StorageError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that repeats a request gets a conflict with its own first one."""
    for name in ("put_new", "replace"):
        real = getattr(type(storage), name)

        def lost(self: Storage, *arguments: Any, real: Any = real) -> None:
            real(self, *arguments)
            raise error("no answer")

        monkeypatch.setattr(type(storage), name, lost)
    first = take_over(storage, TargetVersion("shop", 4)).version
    assert first is not None
    taken = take_over(storage, first).version
    assert taken is not None
    assert read_latest(storage) == taken
    monkeypatch.setattr(type(storage), "put_new", real_conflict)
    with pytest.raises(StorageConflict):
        take_over(storage, taken)


def real_conflict(self: Storage, *_: Any) -> None:
    raise StorageConflict("another writer has replaced the file")


def test_what_a_crash_leaves_is_removed_and_what_others_made_stays(storage: Storage) -> None:
    left = f"_data/t/0001-{'a' * 32}.parquet"
    digits = "b" * 32
    theirs = ["export/part-0000.parquet", "record.json.bak", "deep/er/0001-" + "a" * 32 + ".parquet"]
    take_over(storage, TargetVersion("shop", 4))
    for path in (left, f"{left}.{digits}", f"{path_of(1)}.{digits}", path_of(9), *theirs):
        storage.write(path, b"")
    sweep(storage)
    assert sorted(storage.paths()) == sorted([LATEST, path_of(1), *theirs])


def test_a_target_with_other_files_is_refused(storage: Storage) -> None:
    refuse_anothers(storage)
    storage.write("customers/part-0000.parquet", b"theirs")
    with pytest.raises(StorageError.__base__, match=r"not empty.*customers"):
        refuse_anothers(storage)


@pytest.mark.parametrize("path", [LATEST, path_of(1)])
def test_a_file_of_the_log_that_is_no_json_is_an_error(storage: Storage, path: str) -> None:
    take_over(storage, TargetVersion("shop", 4))
    storage.write(path, b"")
    with pytest.raises(StorageError.__base__, match="not readable"):
        read_latest(storage)


# --- the URI -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "text"),
    [
        ("webhdfs://namenode/lake", r"own protocol, not by HTTP.*hdfs://NAME_NODE"),
        ("hdfs://user:hunter2secret@namenode/lake", "has credentials"),
        ("hdfs:/lake", "has no host"),
        ("hdfs://namenode/../lake", "leads out of the target"),
        ("dbfs:/lake", r"scheme of the target is unknown.*scheme=dbfs.*s3://BUCKET/PATH"),
        ("s3:///lake", "has no bucket"),
        ("abfss://account.dfs.core.windows.net/lake", "has no bucket"),
        ("s3://USER:hunter2secret@bucket/lake", "has credentials"),
        ("abfss://container:hunter2secret@account.dfs.core.windows.net/lake", "has credentials"),
        ("abfss://c@account.dfs.core.windows.net/lake?sig=hunter2secret", "has credentials or parameters"),
        ("file://host/lake", "not the URI of a local folder"),
    ],
)
def test_a_uri_that_cannot_be_used_is_an_error_without_its_credentials(uri: str, text: str) -> None:
    with pytest.raises(StorageError, match=text) as raised:
        open_storage(uri)
    assert "hunter2secret" not in str(raised.value)


def test_a_local_target_is_a_path_or_a_uri(tmp_path: Path) -> None:
    folder = tmp_path / "a lake"
    uris = [str(folder), folder, folder.as_uri(), f"file:{folder}", f"file://localhost{folder}"]
    assert {open_storage(uri).folder for uri in uris} == {folder}
    with pytest.raises(StorageError, match="no options"):
        open_storage(folder, {"region": "us-east-1"})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"aws_regionn": "x"}, "option regionn is unknown - did you mean region"),
        ({"bucket": "another"}, "option bucket is unknown"),
        (
            {"aws_secret_access_key": "hunter2secret"},
            "option secret_access_key is a secret - set it to file:PATH",
        ),
        ({"proxy_url": "http://u:hunter2secret@proxy"}, "option proxy_url is a secret"),
        ({"proxy_url": "u:hunter2secret@proxy:3128"}, "option proxy_url is a secret"),
        ({"endpoint": "u:hunter2secret@s3"}, "option endpoint is a secret"),
        ({"endpoint": "https://u:hunter2secret@s3"}, "option endpoint is a secret"),
        ({"sts_endpoint": "https://hunter2secret@sts"}, "option sts_endpoint is a secret"),
        ({"region": "x", "AWS_REGION": "y"}, "set twice"),
    ],
)
def test_an_option_that_cannot_be_used_is_an_error(options: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text) as raised:
        open_storage("s3://bucket/lake", options)
    assert "hunter2secret" not in str(raised.value)


def test_the_key_of_an_account_in_clear_is_refused() -> None:
    """The option may also be the path of a file with it."""
    with pytest.raises(ConfigError, match="option service_account is a secret") as raised:
        storage_options("gs", {"google_service_account": '{"private_key": "hunter2secret"}'})
    assert "hunter2secret" not in str(raised.value)
    assert storage_options("gs", {"service_account": "/etc/key.json"}) == (
        ("service_account", "/etc/key.json"),
    )


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(StorageError, match=r"package obstore.*extra `spark-cloud`"):
        open_storage("s3://bucket/lake")


# --- the bucket ----------------------------------------------------------------------------------------------


def failure(storage: Storage) -> str:
    """Return the error of each request, which is the same text but for the action."""
    texts = set()
    attempts: list[Callable[[], Any]] = [
        lambda: storage.read_versioned("a"),
        lambda: storage.put_new("a", b""),
        lambda: storage.replace("a", b"", Version('"x"')),
        lambda: storage.write("a", b""),
        lambda: [*storage.paths()],
        lambda: storage.exists("a"),
    ]
    for attempt in attempts:
        with pytest.raises(StorageError) as raised:
            attempt()
        assert not isinstance(raised.value, StorageConflict)
        assert S3_PASSWORD not in str(raised.value)
        assert raised.value.__cause__ is None
        texts.add(raised.value.message.partition(": ")[2] + " -> " + hint_of(str(raised.value)))
    assert len(texts) == 1
    return texts.pop()


@pytest.mark.nightly
def test_a_bucket_that_does_not_exist(s3: S3Server) -> None:
    text = failure(open_storage("s3://no-such-bucket/x", s3.options()))
    assert text.startswith("the bucket does not exist -> create the bucket")


@pytest.mark.nightly
@pytest.mark.parametrize("wrong", [{"access_key_id": "nobody"}, {"secret_access_key": "env:HOME"}])
def test_credentials_that_are_refused(s3: S3Server, bucket: str, wrong: dict[str, str]) -> None:
    assert failure(open_storage(bucket, s3.options(**wrong))).startswith(
        "access is refused -> correct the cred"
    )


@pytest.mark.nightly
def test_an_endpoint_without_tls_has_to_be_allowed(
    s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = s3.options(allow_http="false")
    assert "allow_http" in failure(open_storage(bucket, options))
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    del options["allow_http"]
    open_storage(bucket, options).put_new("a", b"")


@pytest.mark.nightly
def test_a_server_that_is_away_and_returns(
    s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(storage_cloud.RETRIES, "max_retries", 1)
    storage = open_storage(bucket, s3.options())
    s3.stop()
    try:
        assert failure(storage).startswith("the storage does not answer -> check the endpoint")
    finally:
        s3.start()
    storage.put_new("a", b"1")
    assert storage.read("a") == b"1"


@pytest.mark.nightly
@pytest.mark.parametrize(
    "action", nightly_except(["read", "put_new", "replace", "write", "paths", "delete"], "read", "replace")
)
def test_a_short_outage_is_waited_for(s3: S3Server, bucket: str, action: str) -> None:
    storage = open_storage(bucket, s3.options())
    version = storage.put_new("a", b"1")
    actions: dict[str, Callable[[], Any]] = {
        "read": lambda: storage.read("a"),
        "put_new": lambda: storage.put_new("b", b"2"),
        "replace": lambda: storage.replace("a", b"2", version),
        "write": lambda: storage.write("a", b"2"),
        "paths": lambda: [*storage.paths()],
        "delete": lambda: storage.delete(["a"]),
    }
    s3.stop()
    starts = threading.Timer(1, s3.start)
    starts.start()
    try:
        actions[action]()
    finally:
        starts.join()


@pytest.mark.nightly
def test_the_credentials_may_be_in_the_environment(
    s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "AWS_ACCESS_KEY_ID": s3.options()["access_key_id"],
        "AWS_SECRET_ACCESS_KEY": s3.password,
        "AWS_ENDPOINT_URL": s3.url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    open_storage(f"{bucket}/a/".replace("s3:", "s3a:")).put_new("b", b"1")
    assert open_storage(bucket).read("a/b") == b"1"


@pytest.mark.nightly
def test_what_an_executor_is_sent_has_no_secret(s3: S3Server, bucket: str) -> None:
    storage = open_storage(bucket, s3.options())
    storage.put_new("a", b"1")
    sent = pickle.dumps(storage)
    assert s3.password.encode() not in sent
    assert s3.password not in repr(storage)
    assert pickle.loads(sent).read("a") == b"1"


@pytest.mark.parametrize(
    ("uri", "options"),
    [
        ("s3://bucket/lake", {"endpoint": "::", "region": "x"}),
        ("s3://bucket/lake", {"timeout": "soon", "region": "x"}),
        ("s3://bucket/lake", {"skip_signature": "maybe", "region": "x"}),
        ("abfss://c@account.elsewhere.example.com/lake", {}),
        ("gs://bucket/lake", {"application_credentials": "/no/such/file"}),
    ],
)
def test_what_the_client_cannot_use_is_an_error_of_cdcd(
    uri: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one is a panic of the library, which is no Exception."""
    for name, value in (("AWS_ACCESS_KEY_ID", "x"), ("AWS_SECRET_ACCESS_KEY", "hunter2secret")):
        monkeypatch.setenv(name, value)
    assert failure(open_storage(uri, options)).startswith(
        "the client cannot make the request -> correct the URI"
    )


def test_a_server_that_does_not_answer_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(storage_cloud.RETRIES, "max_retries", 1)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2secret")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        options = {"endpoint": endpoint, "allow_http": "true", "region": "x", "timeout": "200ms"}
        started_s = time.monotonic()
        assert failure(open_storage("s3://bucket/lake", options)).startswith("the storage does not answer")
        assert time.monotonic() - started_s < 30


# --- the folder ----------------------------------------------------------------------------------------------


def test_a_file_system_without_links_creates_a_file_once_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", no_links)
    storage = open_storage(tmp_path)
    for turn in range(25):
        won = raced(4, lambda number: storage.put_new(str(turn), b"%d" % number))  # noqa: B023
        assert [storage.read(str(turn))] == [b"%d" % number for number in won]


def test_a_replacement_waits_for_the_lock_of_the_file_and_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = open_storage(tmp_path)
    version = storage.put_new("record.json", b"1")
    with (tmp_path / "record.json").open("rb+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        monkeypatch.setattr(storage_local, "LOCKED_WITHIN_S", 0.2)
        with pytest.raises(StorageConflict, match="holds the lock"):
            storage.replace("record.json", b"2", version)
        threading.Timer(0.2, lambda: fcntl.flock(held, fcntl.LOCK_UN)).start()
        monkeypatch.setattr(storage_local, "LOCKED_WITHIN_S", 60)
        storage.replace("record.json", b"2", version)
    assert (tmp_path / "record.json").read_bytes() == b"2"
    assert [*storage.paths()] == ["record.json"]


def test_a_writer_that_is_killed_leaves_complete_records(tmp_path: Path) -> None:
    versions = []
    for _ in range(5):
        command = racing_command(str(tmp_path), {}, rounds=1_000_000)
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdin is not None
            writer.stdin.write("go\n")
            writer.stdin.flush()
            before = read_latest(tmp_path)
            while (found := read_latest(tmp_path)) is None or found == before:
                assert writer.poll() is None
            writer.kill()
        last = read_latest(tmp_path)
        assert last is not None
        versions.append(last.number)
    assert versions == sorted(set(versions))
    sweep(tmp_path)
    records = {path_of(number) for number in range(1, versions[-1] + 1)}
    # Each writer may have been killed before it wrote LATEST, which only names a record to begin at.
    assert {LATEST, *open_storage(tmp_path).paths()} == {LATEST, *records}


def test_a_folder_that_is_a_file_is_an_error_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "lake").write_text("")
    storage = open_storage(tmp_path / "lake")
    with pytest.raises(StorageError, match=r"(Not a directory|File exists).*has to be a folder") as raised:
        storage.put_new("record.json", b"")
    assert str(tmp_path / "lake") in str(raised.value)
