"""A hint never proposes a setting that is already set or that this configuration excludes."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from cdcd.config import Config, load
from cdcd.errors import CdcdError, KeyChanged, SchemaIncompatible, SpillFull, UnsafeStreaming
from cdcd.process.hints import adapt_hint

PLAIN = {
    "name": "shop",
    "source": {"dsn": "postgresql://cdcd@db/shop"},
    "sink": {"bootstrap_servers": "k:9092"},
    "registry": {"url": "http://r:8080"},
}


@pytest.mark.parametrize(
    ("cls", "over", "proposed", "instead"),
    [
        (SpillFull, {"source": {"protocol": {"streaming": "off"}}}, "streaming: off", "ROLLBACK PREPARED"),
        (UnsafeStreaming, {"source": {"protocol": {"streaming": "off"}}}, "streaming: off", "report"),
        (SchemaIncompatible, {"registry": {"subjects": "record_name"}}, "new_topic", "register_with_none"),
        (KeyChanged, {"registry": {"auto_register": False}}, "registry.incompatible", "register the new key"),
        (KeyChanged, {"registry": "none"}, "delete the subject", "registry.incompatible: new_topic"),
        (KeyChanged, {"registry": {"subjects": "record_name"}}, "new_topic", "delete the subject of the key"),
    ],
)
def test_what_the_configuration_rules_out_is_not_proposed(
    tmp_path: Path, cls: type[CdcdError], over: dict[str, object], proposed: str, instead: str
) -> None:
    assert proposed in adapt_hint(cls("x"), config(tmp_path, {})).advice
    fitted = adapt_hint(cls("x"), config(tmp_path, over)).advice
    assert proposed not in fitted
    assert instead in fitted


def test_a_hint_of_its_own_stays(tmp_path: Path) -> None:
    unstreamed = config(tmp_path, {"source": {"protocol": {"streaming": "off"}}})
    assert adapt_hint(SpillFull("x", hint="its own"), unstreamed).advice == "its own"


def config(folder: Path, over: dict[str, object]) -> Config:
    document: dict[str, object] = {**PLAIN}
    for section, values in over.items():
        below = document[section]
        document[section] = (
            {**below, **values} if isinstance(values, dict) and isinstance(below, dict) else values
        )
    path = folder / "cdcd.yaml"
    path.write_text(yaml.safe_dump(document))
    return load(path, {}).config
