"""Check the rendered chart: `assertions.py RENDERED --core CORE`.

In: the output of `helm template`.  Out: CORE, the same without custom resources (for a schema check); exit status 1
at the first failed assertion.
Invariant: the daemon's own loader checks the rendered configuration, with files in place of the mounted Secrets.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from pathlib import Path
from typing import Any

import yaml

from cdcd.cli import _parser
from cdcd.config import Config, load_config
from cdcd.spark.commands.arguments import parse
from tests.chart.shown_metrics import unknown_metrics

CUSTOM = ("PodMonitor", "PrometheusRule")
SECRETS = "/etc/cdcd/secrets"
CONFIG = "/etc/cdcd/config"
MOST_OF_A_CRONJOB = 52
"""Kubernetes adds 11 characters to the name, for its jobs."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("rendered", type=Path)
    parser.add_argument("--core", type=Path, required=True)
    options = parser.parse_args()
    manifests = [each for each in yaml.safe_load_all(options.rendered.read_text()) if each]
    options.core.write_text(yaml.safe_dump_all([each for each in manifests if each["kind"] not in CUSTOM]))

    workload = one(manifests, "StatefulSet")
    pod = workload["spec"]["template"]["spec"]
    config = configuration(manifests)
    assert workload["spec"]["replicas"] in (0, 1)
    assert_pod(pod)
    assert_pod(one(manifests, "Pod")["spec"])
    assert one(manifests, "Pod")["metadata"]["annotations"] == {
        "helm.sh/hook": "test",
        "helm.sh/hook-delete-policy": "before-hook-creation",  # the pod's log is read after its success
    }
    for each in (pod, one(manifests, "Pod")["spec"]):
        assert each["containers"][0]["args"][-2:] == ["--config", f"{CONFIG}/cdcd.yaml"]
    assert_probes(pod["containers"][0], config)
    assert_selected(manifests, workload)
    assert "checksum/config" in workload["spec"]["template"]["metadata"]["annotations"]
    assert pod["terminationGracePeriodSeconds"] * 1000 >= config.shutdown_timeout_ms + 5000
    assert not any(each["kind"] == "Secret" for each in manifests)
    assert_secret_files(pod, config)
    assert_mirror(manifests, config)
    assert_verify(manifests, config)


def one(manifests: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    found = [each for each in manifests if each["kind"] == kind]
    assert len(found) == 1, f"{len(found)} of kind {kind}"
    return found[0]


def configuration(manifests: list[dict[str, Any]]) -> Config:
    """Load cdcd.yaml as the daemon does."""
    text = one([each for each in manifests if "cdcd.yaml" in each.get("data", ())], "ConfigMap")["data"][
        "cdcd.yaml"
    ]
    with tempfile.TemporaryDirectory() as folder:
        for path in mounted(one(manifests, "StatefulSet")["spec"]["template"]["spec"]):
            (Path(folder) / Path(path).name).write_text("secret")
        file = Path(folder) / "cdcd.yaml"
        file.write_text(text.replace(SECRETS, folder))
        return load_config(file, {})


def assert_pod(pod: dict[str, Any]) -> None:
    """Check the restricted level of the pod security standards, and that the root file system is read-only."""
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    security = pod["securityContext"]
    assert security["runAsNonRoot"] is True
    assert security["runAsUser"] == security["runAsGroup"] == security["fsGroup"] == 65532
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "privileged": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert mounts.keys() == {volume["name"] for volume in pod["volumes"]}
    assert all(mount.get("readOnly") or name == "tmp" for name, mount in mounts.items())
    assert not any("subPath" in mount for mount in mounts.values()), (
        "a subPath mount does not get rotated secrets"
    )
    assert not any("valueFrom" in variable for variable in container.get("env", ())), "secrets must be files"


def assert_probes(container: dict[str, Any], config: Config) -> None:
    (port,) = container["ports"]
    assert port == {"name": "http-admin", "containerPort": config.admin.port}
    assert config.admin.host == "0.0.0.0"
    assert config.admin.host_names, "clients use the Service's name and namespace"
    for probe in ("startup", "live", "ready"):
        key = {"startup": "startupProbe", "live": "livenessProbe", "ready": "readinessProbe"}[probe]
        assert container[key]["httpGet"] == {"path": f"/{probe}z", "port": "http-admin"}


def assert_selected(manifests: list[dict[str, Any]], workload: dict[str, Any]) -> None:
    service = one(manifests, "Service")["spec"]
    labels = workload["spec"]["template"]["metadata"]["labels"].items()
    assert workload["spec"]["serviceName"] == one(manifests, "Service")["metadata"]["name"]
    assert service["clusterIP"] == "None"
    assert service["selector"].items() <= labels
    assert workload["spec"]["selector"]["matchLabels"].items() <= labels
    checking = one(manifests, "Pod")["metadata"]["labels"].items()
    assert not service["selector"].items() <= checking, "the Service must not select the test's pod"
    workloads = {"http-admin": workload}
    if any(each["kind"] == "Deployment" for each in manifests):
        workloads["http-metrics"] = one(manifests, "Deployment")
    for monitor in (each for each in manifests if each["kind"] == "PodMonitor"):
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        selected = {
            port: wanted <= one_workload["spec"]["template"]["metadata"]["labels"].items()
            for port, one_workload in workloads.items()
        }
        assert selected == {port: port == endpoint["port"] for port in workloads}
    names = {each["metadata"]["name"] for each in manifests if each["kind"] == "PodMonitor"}
    for rule in (each for each in manifests if each["kind"] == "PrometheusRule"):
        job = f'job="{rule["metadata"]["namespace"]}/{rule["metadata"]["name"]}"'
        assert rule["metadata"]["name"] in names, "the operator names the job after the PodMonitor"
        for alert in (each for group in rule["spec"]["groups"] for each in group["rules"]):
            selectors = re.findall(rf"\b(?:cdcd_|process_)[a-z_]+(.{{,{len(job) + 1}}})", alert["expr"])
            assert {f"{{{job}"} == set(selectors), alert["expr"]


def assert_mirror(manifests: list[dict[str, Any]], config: Config) -> None:
    """Check the mirror, if there is one: its pod, its arguments, and that it has no secret of PostgreSQL."""
    assert unknown_metrics(yaml.safe_dump_all(manifests)) == set()
    if not any(each["kind"] == "Deployment" for each in manifests):
        return
    workload = one(manifests, "Deployment")
    pod = workload["spec"]["template"]["spec"]
    assert_pod(pod)
    assert (workload["spec"]["replicas"], workload["spec"]["strategy"]) == (1, {"type": "Recreate"})
    labels = workload["spec"]["template"]["metadata"]["labels"]
    assert workload["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert not one(manifests, "Service")["spec"]["selector"].items() <= labels.items()
    (container,) = pod["containers"]
    assert container["args"][:3] == ["python", "-m", "cdcd.spark"]
    options = parse(container["args"][3:])
    assert options.config == f"{CONFIG}/cdcd.yaml"
    assert container["ports"] == [{"name": "http-metrics", "containerPort": options.metrics_port}]
    assert options.metrics_host == "0.0.0.0"
    files = set(mounted(pod))
    used = {path.name for path in config.secret_files}
    assert files == {name for name in used if not name.startswith("postgres")}
    targets = [
        path for volume in pod["volumes"] if volume["name"] == "target" for path in volume["secret"]["items"]
    ]
    referred = {
        value.removeprefix("file:") for _, value in options.target_option if value.startswith("file:")
    }
    assert referred == {f"/etc/cdcd/target/{item['path']}" for item in targets}
    assert not any("postgres" in volume["name"] for volume in pod["volumes"])


def assert_verify(manifests: list[dict[str, Any]], config: Config) -> None:
    """Check the CronJob of `cdcd verify`, if there is one: its pod, its arguments, its secrets."""
    if not any(each["kind"] == "CronJob" for each in manifests):
        return
    assert len(one(manifests, "CronJob")["metadata"]["name"]) <= MOST_OF_A_CRONJOB
    spec = one(manifests, "CronJob")["spec"]
    template = spec["jobTemplate"]["spec"]["template"]
    assert (spec["concurrencyPolicy"], spec["jobTemplate"]["spec"]["backoffLimit"]) == ("Forbid", 0)
    assert_pod(template["spec"])
    assert_secret_files(template["spec"], config)
    assert not one(manifests, "Service")["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    (container,) = template["spec"]["containers"]
    options = _parser().parse_args(container["args"])
    assert (options.command, str(options.config)) == ("verify", f"{CONFIG}/cdcd.yaml")


def assert_secret_files(pod: dict[str, Any], config: Config) -> None:
    """Check that the configuration uses every mounted file, and that only the pod's user and group may read it."""
    used = {path.name for path in config.secret_files}
    assert used == {Path(path).name for path in mounted(pod)}
    for volume in pod["volumes"]:
        source = volume.get("projected") or volume.get("secret")
        assert source is None or source["defaultMode"] == 0o440


def mounted(pod: dict[str, Any]) -> list[str]:
    (volume,) = [each for each in pod["volumes"] if each["name"] == "secrets"] or [
        {"projected": {"sources": []}}
    ]
    return [item["path"] for source in volume["projected"]["sources"] for item in source["secret"]["items"]]


if __name__ == "__main__":
    main()
