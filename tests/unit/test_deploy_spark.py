"""What deploys the Spark commands: each command line in it is one that the programs take, and no secret is in clear.

No Docker and no Kubernetes here: the files are parsed, and the entry point runs with a program that prints its words.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from cdcd.spark.commands.arguments import parse

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "spark"
PAGES = (FOLDER / "README.md", ROOT / "docs" / "spark.md", *sorted(ROOT.glob("docs/spark/*.md")))
PROGRAM = "cdcd_spark.py"
_CODE = re.compile(r"^```sh\n(.*?)^```", re.M | re.S)


def _commands(page: Path) -> list[list[str]]:
    """Return the words of the commands in the page's code that start a command of cdcd.spark."""
    text = "\n".join(_CODE.findall(page.read_text())).replace("\\\n", " ")
    lines = (shlex.split(line, comments=True) for line in text.splitlines())
    return [words for words in lines if any(word.endswith((PROGRAM, "cdcd.spark")) for word in words)]


def _arguments(words: list[str]) -> list[str]:
    """Return the words after the program."""
    (place,) = [n for n, word in enumerate(words) if word.endswith((PROGRAM, "cdcd.spark"))]
    return words[place + 1 :]


def _loaded(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_are_parsed(page: Path) -> None:
    for words in _commands(page):
        options = parse(_arguments(words))
        if options.command in (
            "status",
            "views",
            "wait",
            "register",
            "drop-table",
        ):  # they read the target only
            continue
        assert options.config or (options.brokers and options.prefix and options.registry), words


def test_the_pages_have_commands() -> None:
    assert len(_commands(FOLDER / "README.md")) >= 4
    assert sum(len(_commands(page)) for page in PAGES) >= 20


def test_the_application_has_one_command_and_mounts_what_it_refers_to() -> None:
    spec = _loaded("sparkapplication.yaml")["spec"]
    assert spec["mainApplicationFile"].endswith(f"/{PROGRAM}")
    options = parse(spec["arguments"])
    driver, executor = spec["driver"], spec["executor"]
    (configuration,) = driver["configMaps"]
    assert str(Path(options.config).parent) == configuration["path"]
    referred = re.findall(r"file:(\S+)", " ".join(spec["arguments"]))
    assert len(referred) == 2
    for pod in (driver, executor):
        mounted = {secret["path"] for secret in pod["secrets"]}
        assert {str(Path(path).parent) for path in referred} <= mounted
        assert not {"env", "envFrom", "envVars", "envSecretKeyRefs"} & pod.keys()
    assert not any("Env" in name for name in spec["sparkConf"])


def test_the_cluster_of_compose_runs_one_mirror_of_its_servers() -> None:
    services = _loaded("compose.yaml")["services"]
    below = yaml.safe_load((FOLDER.parent / "compose.yaml").read_text())["services"]
    assert not services.keys() & below.keys()
    for service in services.values():
        assert set(service.get("depends_on", ())) <= services.keys() | below.keys()
    mirror = services["mirror"]
    master = next(word for word in mirror["command"] if word.startswith("--master="))
    assert master.removeprefix("--master=") in services["spark-worker"]["command"]
    options = parse(_arguments(mirror["command"]))
    mounts = dict(reversed(one.removesuffix(":ro").split(":")) for one in mirror["volumes"])
    assert (FOLDER.parent / mounts[options.config]).is_file()
    lake = str(Path(options.target).parent)
    assert {dict([one.split(":")[1::-1] for one in s["volumes"]])[lake] for s in services.values()} == {
        "lake"
    }


def test_a_service_of_compose_is_started_again_unless_what_it_needs_was_ready_before() -> None:
    """`service_started` says only that a server's process runs, not that it answers."""
    below = yaml.safe_load((FOLDER.parent / "compose.yaml").read_text())["services"]
    services = below | _loaded("compose.yaml")["services"]
    waiting = {
        (name, of, needed["condition"])
        for name, service in services.items()
        for of, needed in service.get("depends_on", {}).items()
    }
    assert ("init", "registry", "service_started") in waiting
    for name, of, condition in waiting:
        if condition == "service_started":
            assert services[name].get("restart", "").startswith("on-failure"), (
                f"{name} does not wait for {of}"
            )
        if condition == "service_healthy":
            assert "healthcheck" in services[of]


def _stages() -> dict[str, str]:
    """Return the stages of the Dockerfile by name, in order; the last one is the default target."""
    stages = re.split(r"^FROM ", (ROOT / "Dockerfile").read_text(), flags=re.M)[1:]
    named = [(re.match(r"\S+(?: AS (\w+))?\n", one), one) for one in stages]
    return {(match and match[1]) or "default": text for match, text in named}


def test_the_default_image_has_no_spark_and_the_other_one_has_the_program() -> None:
    stages = _stages()
    assert list(stages) == ["build", "spark", "default"]
    assert "ARG EXTRAS=\n" in stages["build"]
    assert "spark" not in stages["default"].lower()
    assert "java" not in stages["default"].lower()
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    (copied,) = re.findall(r"^COPY (deploy/.*) \S+$", stages["spark"], re.M)
    for path in copied.split():
        assert (ROOT / path).is_file()
        assert f"!{path}" in ignored


def test_the_user_of_the_image_with_spark_has_a_name() -> None:
    """Hadoop's login fails for a uid without an entry in the passwd file, and with it each Spark session."""
    stage = _stages()["spark"]
    (user,) = re.findall(r"^USER (\d+):\d+$", stage, re.M)
    (entry,) = re.findall(r"^RUN getent passwd (\d+) \|\| echo '(.+)' >>/etc/passwd$", stage, re.M)
    fields = entry[1].split(":")
    assert (entry[0], fields[2], len(fields)) == (user, user, 7)
    assert stage.index("/etc/passwd") < stage.index("USER ")
    assert fields[0]
    application = _loaded("sparkapplication.yaml")["spec"]
    users = {application[pod]["securityContext"]["runAsUser"] for pod in ("driver", "executor")}
    assert users == {int(user)}


KUBERNETES = {
    "SPARK_DRIVER_BIND_ADDRESS": "10.0.0.1",
    "SPARK_DRIVER_URL": "spark://driver:7078",
    "SPARK_EXECUTOR_MEMORY": "2g",
    "SPARK_EXECUTOR_ID": "7",
    "SPARK_EXECUTOR_CORES": "1",
    "SPARK_APPLICATION_ID": "app-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.2",
    "SPARK_EXECUTOR_POD_NAME": "pod-7",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_JAVA_OPT_0": "-Dfirst=a b",
    "SPARK_JAVA_OPT_1": "-Dsecond=$HOME",
    "SPARK_HOME": "/opt/spark",
}


def _started(folder: Path, *words: str) -> list[str]:
    """Return what the entry point starts: tini is a program that prints the words after its own."""
    tini = folder / "tini"
    tini.write_text('#!/bin/sh\nshift 2\nprintf "%s\\n" "$@"\n')
    tini.chmod(0o755)
    environment = KUBERNETES | {"PATH": f"{folder}:{os.environ['PATH']}"}
    command = ["/bin/sh", str(FOLDER / "entrypoint.sh"), *words]
    return subprocess.run(
        command, env=environment, cwd=folder, check=True, capture_output=True, text=True
    ).stdout.splitlines()


def test_the_entry_point_starts_a_driver_an_executor_or_a_command(tmp_path: Path) -> None:
    driver = _started(tmp_path, "driver", "--class", "PythonRunner", f"local:///{PROGRAM}", "a b")
    assert driver[0] == "spark-submit"
    assert "spark.driver.bindAddress=10.0.0.1" in driver
    assert driver[-6:] == ["--deploy-mode", "client", "--class", "PythonRunner", f"local:///{PROGRAM}", "a b"]
    executor = _started(tmp_path, "executor")
    assert executor[:5] == ["java", "-Xms2g", "-Xmx2g", "-Dfirst=a b", "-Dsecond=$HOME"]
    assert executor[executor.index("-cp") + 1] == f"/opt/spark/conf::/opt/spark/jars/*::{tmp_path}"
    given = dict(zip(executor[8::2], executor[9::2], strict=True))
    assert given["--driver-url"] == "spark://driver:7078"
    assert given["--podName"] == "pod-7"
    assert _started(tmp_path, "spark-submit", "--version") == ["spark-submit", "--version"]
