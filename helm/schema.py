"""`python helm/schema.py`: write helm/cdcd/values.schema.json; with `--check`, check that it is up to date.

In: the JSON Schema that the daemon prints, and the chart's own values, declared below.
Out: one draft-07 schema (the newest that Helm 3 supports), so that `helm template` already refuses a wrong key.
Invariant: no owned mapping accepts an unknown key. The daemon's rules apply below `config`, with two rules of a
ConfigMap and a container: no secret in it, and an address that the probes can reach. What is a secret follows from
cdcd's own rules. Helm's regular expressions (RE2) have no lookahead.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cdcd.config.dsn import SHOWN
from cdcd.config.sample import json_schema
from cdcd.property_names import (
    ADDRESSES,
    EXTENSIONS,
    NO_SECRETS,
    SECRET_WORDS,
    URL_USER,
    is_secret_property,
)
from cdcd.spark.storage.options import SECRETS
from cdcd.spark.storage.uri import CLOUD_SCHEMES

Schema = dict[str, Any]

TARGET = Path(__file__).parent / "cdcd" / "values.schema.json"
_PROSE = ("title", "description", "examples", "default", "format", "$schema")
_LOOPBACK = ["127.0.0.1", "::1", "localhost"]

_STRING: Schema = {"type": "string"}
_BOOLEAN: Schema = {"type": "boolean"}
_ANY_MAP: Schema = {"type": "object"}
_MAPS: Schema = {"type": "array", "items": {"type": "object"}}
_STRINGS: Schema = {"type": "object", "additionalProperties": _STRING}
_COUNT: Schema = {"type": "integer", "minimum": 1}
_DURATION: Schema = {"type": "string", "pattern": "^([0-9]+(ms|s|m|h))+$"}


def _any_of(texts: Iterable[str]) -> str:
    return f"({'|'.join(map(re.escape, sorted(texts)))})"


def _no_text(*patterns: str) -> Schema:
    """Return the schema of a value that, if it is a text, matches none of the patterns in any case."""
    return {"not": {"type": "string", "anyOf": [{"pattern": f"(?i){pattern}"} for pattern in patterns]}}


def _secret_parameter() -> str:
    """Return the pattern of a secret parameter in a DSN: a word of a secret in a name, except in libpq's passfile."""
    (shown,) = filter(is_secret_property, SHOWN)
    word, letter = "pass", "[a-z0-9_%]"
    rest = shown.removeprefix(word)
    others = _any_of(other for other in SECRET_WORDS if other != word)
    ends = (word + rest[:n] for n in range(len(rest)))
    differs = (f"{word}{rest[:n]}[^{rest[n]}=&\\s]{letter}*" for n in range(len(rest)))
    names = "|".join((f"{others}{letter}*", *ends, *differs, f"{shown}{letter}+"))
    return f"(^|[?&\\s]){letter}*({names})\\s*="


_NO_SECRET_NAME: Schema = {
    "not": {
        "allOf": [
            {"pattern": f"(?i){_any_of(SECRET_WORDS)}"},
            {"not": {"pattern": f"(?i){_any_of(NO_SECRETS)}$"}},
        ]
    }
}
_NO_SECRET_VALUES: Schema = {
    "patternProperties": {
        "": _no_text(URL_USER),
        f"(?i){_any_of(ADDRESSES)}$": _no_text("@"),
        f"(?i){re.escape(EXTENSIONS)}$": _no_text(f"{_any_of(SECRET_WORDS)}[^=,]*="),
    }
}
_NO_PASSWORD = _no_text(
    "^[^/]*://[^@?]*:[^@?]+(\\?[^=@]*)?@",  # in place of a host, also where its special characters are not encoded
    _secret_parameter(),
    "://.*[?&][^=&]*%[^=&]*=",  # no name of a parameter needs an encoded character
)
_NO_CREDENTIALS = _no_text("[@?#]")
_NO_KEYS = _no_text("^[a-z0-9]+://[^/]*:[^/]*@", f"^{_any_of(CLOUD_SCHEMES)}://[^/]*:.*@")
_NO_STORAGE_SECRETS: Schema = {
    "propertyNames": {"not": {"pattern": f"(?i)(^|_){_any_of(SECRETS)}$"}},
    "allOf": [_NO_SECRET_VALUES, {"patternProperties": {"": _no_text("^\\s*\\{")}}],
}


def values_schema() -> Schema:
    """Return the schema of the chart's values."""
    daemon = json.loads(json_schema())
    definitions = {name: _draft_07(schema) for name, schema in daemon.pop("$defs").items()}
    definitions["Config"] = _draft_07(daemon)
    _restrict(definitions)
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the cdcd chart",
        **_owned(_properties()),
        "definitions": definitions,
    }


def text() -> str:
    """Return the file's text."""
    return json.dumps(values_schema(), indent=2) + "\n"


def main() -> int:
    """Write or check the file; return the exit status."""
    if sys.argv[1:] != ["--check"]:
        TARGET.write_text(text())
    elif not TARGET.exists() or TARGET.read_text() != text():
        print(
            f"{TARGET} is not up to date with the configuration: run python helm/schema.py", file=sys.stderr
        )
        return 1
    return 0


def _properties() -> dict[str, Schema]:
    existing = {"existingSecret": _STRING}
    with_key = _owned({**existing, "key": _STRING})
    return {
        "global": _ANY_MAP,
        "replicas": {"enum": [0, 1]},
        "nameOverride": _STRING,
        "fullnameOverride": _STRING,
        "image": _image(),
        "imagePullSecrets": _MAPS,
        # a chart without values has an empty config, which the template refuses with its own message
        "config": {"type": "object", "if": {"minProperties": 1}, "then": {"$ref": "#/definitions/Config"}},
        "secrets": _owned(
            {
                "postgres": with_key,
                "kafka": _owned({**existing, "properties": _STRINGS}),
                "registry": with_key,
            }
        ),
        "tls": _owned({name: _owned(existing) for name in ("postgres", "kafka", "registry")}),
        "terminationGracePeriodSeconds": {"type": "integer", "minimum": 6},
        "probes": _owned({name: _probe() for name in ("startup", "liveness", "readiness")}),
        "resources": _ANY_MAP,
        "tmp": _tmp(),
        "serviceAccount": _owned({"create": _BOOLEAN, "name": _STRING, "annotations": _STRINGS}),
        "podMonitor": _owned(
            {
                "enabled": _BOOLEAN,
                "interval": _DURATION,
                "scrapeTimeout": _DURATION,
                "additionalLabels": _STRINGS,
            }
        ),
        "prometheusRule": _owned(
            {"enabled": _BOOLEAN, "lagSeconds": _COUNT, "behindSeconds": _COUNT, "additionalLabels": _STRINGS},
        ),
        "dashboard": _owned({"enabled": _BOOLEAN, "labels": _STRINGS}),
        "verify": _owned(
            {
                "schedule": _STRING,
                "extraArgs": {"type": "array", "items": _STRING},
                "activeDeadlineSeconds": {"type": "integer", "minimum": 0},
                "resources": _ANY_MAP,
            }
        ),
        "mirror": _owned(_mirror()),
        **_pod(),
    }


def _mirror() -> dict[str, Schema]:
    return {
        "enabled": _BOOLEAN,
        "image": _image(),
        "target": {"type": "string", **_NO_KEYS},
        "targetOptions": {**_STRINGS, **_NO_STORAGE_SECRETS},
        "targetSecret": _owned({"existingSecret": _STRING, "options": _STRINGS}),
        "cores": _COUNT,
        "memory": {"type": "string", "pattern": "^[0-9]+[kmgt]$"},
        "retrySeconds": {"type": "integer", "minimum": 0},
        "metricsPort": {"type": "integer", "minimum": 1, "maximum": 65535},
        "extraArgs": {"type": "array", "items": _STRING},
        "terminationGracePeriodSeconds": {"type": "integer", "minimum": 6},
        "probes": _owned({name: _probe() for name in ("startup", "liveness")}),
        "resources": _ANY_MAP,
        "tmp": _tmp(),
        "serviceAccountName": _STRING,
        **_pod(),
    }


def _pod() -> dict[str, Schema]:
    return {
        "podAnnotations": _STRINGS,
        "podLabels": _STRINGS,
        "nodeSelector": _STRINGS,
        "tolerations": _MAPS,
        "affinity": _ANY_MAP,
        "priorityClassName": _STRING,
        "extraEnv": _MAPS,
        "extraVolumes": _MAPS,
        "extraVolumeMounts": _MAPS,
    }


def _image() -> Schema:
    return _owned(
        {
            "repository": {"type": "string", "minLength": 1},
            "tag": _STRING,
            "digest": {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
            "pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
        }
    )


def _tmp() -> Schema:
    return _owned({"sizeLimit": {"type": "string", "pattern": "^[0-9.]+([KMGT]i?)?$"}})


def _owned(properties: dict[str, Schema]) -> Schema:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _probe() -> Schema:
    names = ("initialDelaySeconds", "periodSeconds", "timeoutSeconds", "failureThreshold")
    return _owned({name: {"type": "integer", "minimum": 0} for name in names})


def _draft_07(schema: Schema) -> Schema:
    """Return the schema with references in the form of draft-07, without prose and without inline secrets."""
    made = {key: value for key, value in schema.items() if key not in _PROSE}
    if "$ref" in made:
        return {"$ref": made["$ref"].replace("#/$defs/", "#/definitions/")}
    if "properties" in made:
        made["properties"] = {
            name: _draft_07(option) for name, option in made["properties"].items() if not _is_secret(option)
        }
    for key in ("anyOf", "oneOf", "allOf"):
        if key in made:
            made[key] = [_draft_07(option) for option in made[key]]
    for key in ("items", "additionalProperties"):
        if isinstance(made.get(key), dict):
            made[key] = _draft_07(made[key])
    return made


def _is_secret(option: Schema) -> bool:
    return any(choice.get("writeOnly") for choice in (option, *option.get("anyOf", ())))


def _restrict(definitions: dict[str, Schema]) -> None:
    """Add the rules that apply only in a chart."""

    def option(room: str, name: str) -> Schema:
        return definitions[room]["properties"][name]

    option("Source", "dsn").update(_NO_PASSWORD)
    option("Snapshot", "from").update(_NO_PASSWORD)
    option("Registry", "url").update(_NO_CREDENTIALS)
    for room in ("Sink", "Registry", "Topics"):
        option(room, "properties").update(propertyNames=_NO_SECRET_NAME, allOf=[_NO_SECRET_VALUES])
    option("Admin", "host")["not"] = {"enum": _LOOPBACK}
    option("Admin", "port")["minimum"] = 1


if __name__ == "__main__":
    sys.exit(main())
