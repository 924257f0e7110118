"""A connection to HDFS by hdfs-native: options, time limits, repetitions, and the causes of errors.

In: a URI `hdfs://NAME_NODE[:PORT]` or `hdfs://NAME_SERVICE`, options.  Out: the answers of the library's client.
Invariant: each call ends, also if no name node answers. A call is repeated only after an error that passes by, and
for a limited time; the library itself repeats no change whose answer is lost. What an error says is of this module:
the library's text has stack traces of the server.
Must not: know what a target is, or what is in its files.

The library reads core-site.xml and hdfs-site.xml in HADOOP_CONF_DIR (or HADOOP_HOME/etc/hadoop), the tokens that YARN
gives a container (HADOOP_TOKEN_FILE_LOCATION), and the ticket cache of Kerberos; without Kerberos the user is
HADOOP_USER_NAME or that of the process. It needs neither Java nor libhdfs.
"""

from __future__ import annotations

import difflib
import queue
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from cdcd.errors import ConfigError

Options = tuple[tuple[str, str], ...]
REQUEST_WITHIN_S = 15.0
"""Of the name node. After that another one may be asked, also if this one's host is gone without a trace."""
PART_WITHIN_S = 60.0
"""Of data nodes, which also synchronise their disks."""
REPEATED_FOR_S = 60.0
"""As long as a failover of name nodes, or a restart of a data node, takes."""
PART_BYTES = 16 << 20
"""A larger file is read and written in parts, so that the time-out of a request suffices on a slow link."""
DEFAULT_PORT = 8020
OF_THE_LOGIN = ("kerberos_principal", "kerberos_keytab", "kerberos_cache")
_OWN = ("name_nodes", "config_dir", *OF_THE_LOGIN)
_PROPERTIES = (
    "dfs.client.block.write.replace-datanode-on-failure.best-effort",
    "dfs.client.block.write.replace-datanode-on-failure.enable",
    "dfs.client.block.write.replace-datanode-on-failure.policy",
    "dfs.client.socket-timeout",
    "dfs.client.use.datanode.hostname",
    "dfs.data.transfer.protection",
    "fs.defaultFS",
    "hadoop.security.authentication",
)
_OF_A_NAME_SERVICE = (
    "dfs.client.failover.proxy.provider.",
    "dfs.client.failover.random.order.",
    "dfs.client.failover.resolve-needed.",
    "dfs.client.failover.resolver.useFQDN.",
    "dfs.ha.namenodes.",
    "dfs.namenode.rpc-address.",
)
_LIMITS = {
    # Else one call takes minutes before its error is known.
    "dfs.client.failover.max.attempts": "3",
    "dfs.client.failover.sleep.base.millis": "100",
    "dfs.client.failover.sleep.max.millis": "1000",
}
_KIND = re.compile(r"(\w{1,60})(?:\(\s*\"(?:[\w.]+[.$])?(\w{1,80})\")?")
_PASSES = frozenset(
    {
        *(
            "BlocksNotFound",
            "DataTransferError",
            "NotReplicatedYetException",
            "ObserverRetryOnActiveException",
        ),
        *("OperationFailed", "RetriableException", "SafeModeException", "StandbyException"),
    }
)
_NO_PLACE = "could only be written to"
_REFUSED = "access is refused"
_SILENT = "no name node answers, or no data node"
_RIGHTS = (
    "give the user (HADOOP_USER_NAME, the principal of Kerberos, or the user of the process) the rights to list, "
    "read, write and delete below the target"
)
_LOGIN = (
    "renew the ticket (kinit) or the delegation token (HADOOP_TOKEN_FILE_LOCATION), or set the options "
    "kerberos_principal and kerberos_keytab; Kerberos needs the system's libgssapi_krb5, on the executors too"
)
_CAUSES = {
    "AccessControlException": (_REFUSED, _RIGHTS),
    "AuthorizationException": (_REFUSED, _RIGHTS),
    "SASLError": ("the login is refused", _LOGIN),
    "GSSAPIError": ("the login is refused", _LOGIN),
    "NoSASLMechanism": ("the login is refused", _LOGIN),
    "SaslException": ("the login is refused", _LOGIN),
    "InvalidToken": ("the login is refused", _LOGIN),
    "DSQuotaExceededException": ("the quota of HDFS is used up", "raise the quota, or free space below the target"),
    "NSQuotaExceededException": ("the quota of HDFS is used up", "raise the quota, or free space below the target"),
    "SafeModeException": ("the name node is in safe mode", "wait, or leave safe mode: hdfs dfsadmin -safemode leave"),
    "StandbyException": ("no name node is active", "make a name node active: hdfs haadmin -failover"),
    "InvalidPathException": ("HDFS has no such path", "correct the path: a name in HDFS has no colon"),
    "PathComponentTooLongException": (
        "a name is too long for HDFS",
        "shorten the path of the target, or raise dfs.namenode.fs-limits.max-component-length",
    ),
    "ParentNotDirectoryException": ("a folder of the path is a file", "correct the path of the target"),
    "XmlParseError": ("the configuration of Hadoop is not XML", "correct core-site.xml and hdfs-site.xml here"),
    "InvalidArgument": (
        "the client cannot make the request",
        "correct the URI of the target: hdfs://HOST:PORT/PATH, or a name service that the Hadoop configuration "
        "(HADOOP_CONF_DIR, or the option config_dir) or the option name_nodes has",
    ),
}  # fmt: skip
_REFUSALS = frozenset(
    {_REFUSED, "the login is refused", "the quota of HDFS is used up"}
)  # what an operator corrects while the mirror runs
Result = TypeVar("Result")


def hdfs_options(host: str, given: Mapping[str, str]) -> Options:
    """Return the options, sorted. Raises ConfigError with every problem."""
    problems = [*_problems(host, given)]
    if problems:
        raise ConfigError(
            "the options of the target cannot be used: " + "; ".join(problems),
            tuple(problems),
            hint="correct each one; docs/spark/storage.md lists them",
        )
    return tuple(sorted(given.items()))


def _problems(host: str, given: Mapping[str, str]) -> Iterator[str]:
    for name in given:
        if name not in (*_OWN, *_PROPERTIES) and not name.startswith(_OF_A_NAME_SERVICE):
            close = difflib.get_close_matches(name, (*_OWN, *_PROPERTIES, *_OF_A_NAME_SERVICE), n=1)
            yield f"option {name} is unknown" + (f" - did you mean {close[0]}?" if close else "")
    if "kerberos_principal" not in given and {"kerberos_keytab", "kerberos_cache"} & {*given}:
        yield "option kerberos_principal is missing"
    if "name_nodes" in given:
        if not host or ":" in host:
            yield "option name_nodes needs a name in place of the host and port - hdfs://NAME/PATH"
        if not all(re.fullmatch(r"[^\s:,]+:\d{1,5}", one) for one in given["name_nodes"].split(",")):
            yield "option name_nodes is not of the form HOST:PORT,HOST:PORT"


def properties_of(host: str, options: Options) -> dict[str, str]:
    """Return the options as properties of Hadoop."""
    named = dict(options)
    properties = _LIMITS | {name: value for name, value in options if name not in _OWN}
    if "name_nodes" in named:
        nodes = {f"nn{number}": one for number, one in enumerate(named["name_nodes"].split(","))}
        properties[f"dfs.ha.namenodes.{host}"] = ",".join(nodes)
        properties |= {f"dfs.namenode.rpc-address.{host}.{name}": one for name, one in nodes.items()}
    return properties


class HdfsClient:
    """A client of one HDFS, which connects at its first call, and again after a call without an answer."""

    def __init__(self, uri: str, options: Options) -> None:
        self._host, self._options = urlsplit(uri).netloc, options
        self._opened: Any = None
        self._shuffles = False

    def call(self, request: Callable[[Any], Result], within_s: float | None = None) -> Result:
        """Return what a request to the library's client returns. Raises its errors, and TimeoutError.

        The library waits for a name node without a limit, so that the request is in a thread of its own.
        """
        answers: queue.SimpleQueue[tuple[Result | None, BaseException | None]] = queue.SimpleQueue()

        def run() -> None:
            try:
                answers.put((request(self._client()), None))
            except BaseException as error:  # noqa: BLE001 - raised by the caller
                answers.put((None, error))

        threading.Thread(target=run, name="cdcd-hdfs", daemon=True).start()
        try:
            result, error = answers.get(timeout=within_s or REQUEST_WITHIN_S)
        except queue.Empty:
            self._opened, self._shuffles = None, True  # the next client may begin with another name node
            raise TimeoutError from None
        if error is not None:
            raise error
        return result  # type: ignore[return-value]

    def _client(self) -> Any:
        client = self._opened
        if client is None:
            client = self._opened = self._connected()
        return client

    def _connected(self) -> Any:
        from hdfs_native import Client

        properties = properties_of(self._host, self._options)
        if self._shuffles:
            properties[f"dfs.client.failover.random.order.{self._host}"] = "true"
        named = dict(self._options)
        if not Path(named.get("config_dir", "/")).is_dir():  # the library would do without
            raise ConfigError(
                "the folder of the option config_dir does not exist on this host",
                hint="create it on the driver and on each executor, or correct the option",
            )
        login = {name: named.get(name) for name in OF_THE_LOGIN}
        try:
            return Client(f"hdfs://{self._host}", properties, named.get("config_dir"), **login)
        except RuntimeError as error:
            if kind_of(error) != "InvalidArgument" or ":" in self._host or not self._host:
                raise
        # No name service of the configuration, so a host, as Hadoop's own client has it.
        return Client(f"hdfs://{self._host}:{DEFAULT_PORT}", properties, named.get("config_dir"), **login)


def repeated(attempt: Callable[[], Result]) -> Result:
    """Return the result of the first attempt without an error that passes by. Raises the last one after a minute."""
    ends_s, pause_s = time.monotonic() + REPEATED_FOR_S, 0.1
    while True:
        try:
            return attempt()
        except (OSError, RuntimeError) as error:
            if not passes(error) or time.monotonic() + pause_s > ends_s:
                raise
        time.sleep(pause_s * random.uniform(0.5, 1))  # noqa: S311 - no secret
        pause_s = min(2 * pause_s, 3.0)


def kind_of(error: BaseException) -> str | None:
    """Return the name of the library's error, or of the server's exception."""
    if not isinstance(error, RuntimeError) or isinstance(error, NotImplementedError):
        return None
    found = _KIND.match(str(error))
    return found and (found[2] if found[1] in ("RPCError", "FatalRPCError") and found[2] else found[1])


def passes(error: BaseException) -> bool:
    """Return whether a later attempt may succeed without intervention."""
    if isinstance(error, FileNotFoundError | FileExistsError | IsADirectoryError | NotADirectoryError):
        return False
    return isinstance(error, OSError) or kind_of(error) in _PASSES or _NO_PLACE in str(error)


def heals(error: BaseException) -> bool:
    """Return whether an operator may correct the cause while the mirror runs."""
    return passes(error) or explained(error)[0] in _REFUSALS


def explained(error: BaseException) -> tuple[str, str]:
    """Return the cause and what to do."""
    known = _CAUSES.get(kind_of(error) or "")
    if known is not None:
        return known
    if isinstance(error, FileNotFoundError):
        return (
            "it does not exist",
            "correct the path; if a newer version of the mirror has replaced it, open the mirror again",
        )
    if isinstance(error, NotImplementedError):
        return (
            "the client does not support a feature that this path needs",
            "choose a folder without an encryption zone (hdfs crypto -listZones)",
        )
    if _NO_PLACE in str(error):
        return "no data node takes the data", "start the data nodes, or free space on their disks"
    if passes(error):
        return (
            _SILENT,
            "check the address, the network of this host, and that the name nodes and data nodes run",
        )
    return "HDFS answers with an error", "look up the code in the log of the name node and of the data nodes"
