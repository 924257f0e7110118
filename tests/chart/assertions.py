"""Check the rendered chart: `assertions.py RENDERED --core CORE`.

In: the output of `helm template`.  Out: CORE, the same without custom resources (for a schema check); exit status 1
at the first failed assertion.
Invariant: the daemon's own loader checks the rendered configuration, with files in place of the mounted Secrets.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import yaml

from cdcd.config import Config, load_config

CUSTOM = ("PodMonitor",)
SECRETS = "/etc/cdcd/secrets"
CONFIG = "/etc/cdcd/config"


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
    assert one(manifests, "Pod")["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert_probes(pod["containers"][0], config)
    assert_selected(manifests, workload)
    assert "checksum/config" in workload["spec"]["template"]["metadata"]["annotations"]
    assert pod["terminationGracePeriodSeconds"] * 1000 >= config.shutdown_timeout_ms + 5000
    assert not any(each["kind"] == "Secret" for each in manifests)
    assert_secret_files(pod, config)


def one(manifests: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    found = [each for each in manifests if each["kind"] == kind]
    assert len(found) == 1, f"{len(found)} of kind {kind}"
    return found[0]


def configuration(manifests: list[dict[str, Any]]) -> Config:
    """Load cdcd.yaml as the daemon does."""
    text = one(manifests, "ConfigMap")["data"]["cdcd.yaml"]
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
    assert container["args"][-2:] == ["--config", f"{CONFIG}/cdcd.yaml"]
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
    for monitor in (each for each in manifests if each["kind"] == "PodMonitor"):
        assert monitor["spec"]["selector"]["matchLabels"].items() <= labels
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        assert endpoint["port"] == "http-admin"


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
