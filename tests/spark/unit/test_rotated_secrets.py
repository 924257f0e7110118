"""A storage of a bucket that lives as long as a mirror: after a refusal its secrets are read again."""

from __future__ import annotations

from pathlib import Path

import pytest
from obstore import exceptions

from cdcd.errors import StorageError
from cdcd.spark.storage import cloud
from cdcd.spark.storage.uri import open_storage


def test_a_refused_client_is_replaced_by_one_with_the_present_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret, made = tmp_path / "secret", list[str]()
    options = {"access_key_id": "mirror", "secret_access_key": f"file:{secret}", "region": "us-east-1"}
    storage = open_storage("s3://bucket/mirror", options)
    assert isinstance(storage, cloud.CloudStorage)
    monkeypatch.setattr(
        cloud, "_client", lambda _, given: made.append(cloud._read(given)["secret_access_key"]) or object()
    )

    def request(error: Exception | None) -> None:
        with storage._errors("read", "commit"):
            if error is not None:
                raise error

    secret.write_text("former\n")
    request(None)
    with pytest.raises(StorageError, match="does not answer"):
        request(exceptions.GenericError("HTTP error: connection reset"))
    request(None)
    assert made == ["former"], "only a refusal costs a new client"
    secret.write_text("rotated\n")
    for code in ("SignatureDoesNotMatch", "AccessDenied"):
        with pytest.raises(StorageError, match="access is refused"):
            request(exceptions.PermissionDeniedError(f"status code: 403 <Code>{code}</Code>"))
    request(None)
    assert made[0] == "former"
    assert set(made[1:]) == {"rotated"}
