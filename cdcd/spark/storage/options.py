"""The options of a target in a bucket, by the names that obstore and the clouds' own tools have.

In: names and values of options, and the scheme of the URI.  Out: options with references in place of secrets.
Invariant: a secret in clear is refused, as Spark shows options; an unknown name is an error with the nearest
known one.
Must not: read a secret.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

from cdcd.errors import ConfigError
from cdcd.property_names import has_user
from cdcd.spark.clients.secret_reference import FORMS, SecretReference, reference_in

Option = str | SecretReference
Options = tuple[tuple[str, Option], ...]
OF_CLIENT = frozenset({"allow_http", "proxy_url", "timeout"})
"""Options of the HTTP client; the others are of the store. `timeout` is that of one request, as "60s"."""
_S3 = """
    access_key_id checksum_algorithm container_authorization_token_file
    container_credentials_full_uri container_credentials_relative_uri default_region disable_bulk_delete
    disable_tagging endpoint metadata_endpoint region request_payer role_arn role_session_name secret_access_key
    server_side_encryption session_token skip_signature sse_bucket_key_enabled sse_kms_key_id sts_endpoint
    unsigned_payload virtual_hosted_style_request web_identity_token_file
"""
_AZURE = """
    account_name account_key authority_host client_id client_secret disable_tagging encryption_key endpoint
    federated_token_file msi_endpoint msi_resource_id object_id sas_key skip_signature tenant_id token use_azure_cli
    use_emulator use_fabric_endpoint
"""
_GOOGLE = "application_credentials base_url bearer_token service_account service_account_key skip_signature"
SECRETS = frozenset(
    {
        "account_key",
        "bearer_token",
        "client_secret",
        "encryption_key",
        "sas_key",
        "secret_access_key",
        "service_account_key",
        "session_token",
        "token",
    }
)
"""Options that are secrets, without the prefix that each may have."""
_PREFIXES = ("aws_", "azure_storage_", "azure_", "google_")


def known_options(scheme: str) -> frozenset[str]:
    """Return the names of a storage's options, without the prefix (aws_, azure_, google_) that each may have."""
    own = _S3 if scheme in ("s3", "s3a") else _GOOGLE if scheme == "gs" else _AZURE
    return OF_CLIENT.union(own.split())


def storage_options(scheme: str, given: Mapping[str, str]) -> Options:
    """Return the options, sorted. Raises ConfigError with every problem."""
    named = {_bare(name): value for name, value in given.items()}
    problems = [*_problems(named, known_options(scheme))]
    if len(named) < len(given):
        problems.append("an option of the target is set twice, with and without its prefix")
    if problems:
        raise ConfigError(
            "the options of the target cannot be used: " + "; ".join(problems),
            tuple(problems),
            hint="correct each one; docs/spark/storage.md lists them",
        )
    return tuple(sorted((name, reference_in(value) or value) for name, value in named.items()))


def _bare(name: str) -> str:
    lowered = name.lower()
    for prefix in _PREFIXES:
        if lowered.startswith(prefix):
            return lowered.removeprefix(prefix)
    return lowered


def _is_secret(name: str, value: str) -> bool:
    """Return whether a value must not be shown: by its name, as an address with a user, or as JSON of an account."""
    return name in SECRETS or has_user(name, value) or value.lstrip().startswith("{")


def _problems(named: Mapping[str, str], known: frozenset[str]) -> Iterator[str]:
    for name, value in named.items():
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            yield f"option {name} is unknown" + (f" - did you mean {close[0]}?" if close else "")
        elif _is_secret(name, value) and reference_in(value) is None:
            yield f"option {name} is a secret - set it to {FORMS}, or leave it to the environment"
