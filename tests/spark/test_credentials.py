from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from sbclient.errors import InvalidOperationError, ServiceBusAuthenticationError
from sbclient_spark.clients import open_client
from sbclient_spark.credentials import connection_string_of, credential_of, resolve
from sbclient_spark.options import ConnectionOptions, NamespaceOptions, Secret

NAMESPACE = NamespaceOptions(fully_qualified_namespace="contoso.servicebus.windows.net")


def test_a_secret_is_given_as_an_option_a_variable_or_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PRIMARY", " from the variable\n")
    path = tmp_path / "secret"
    path.write_text("from the file\n")
    assert resolve(Secret(value="itself"), "token") == "itself"
    assert resolve(Secret(env="PRIMARY"), "token") == "from the variable"
    assert resolve(Secret(file=str(path)), "token") == "from the file"


@pytest.mark.parametrize("secret", [Secret(env="NOT_SET_ANYWHERE"), Secret(file="/nowhere/secret")])
def test_a_missing_secret_is_an_error_with_the_name_of_its_variable_or_file(secret: Secret) -> None:
    with pytest.raises(ServiceBusAuthenticationError) as caught:
        resolve(secret, "connectionString")
    assert (secret.env or secret.file or "") in str(caught.value)


def test_a_namespace_by_name_has_no_connection_string() -> None:
    assert connection_string_of(NAMESPACE, "connectionString") is None
    given = NamespaceOptions(connection_string=Secret(value="memory://contoso"))
    parsed = connection_string_of(given, "connectionString")
    assert parsed is not None
    assert parsed.namespace == "memory://contoso"


def web_token(claims: object) -> str:
    return ".".join(
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({}, claims, 1)
    )


@pytest.mark.parametrize(
    ("token", "expires_on"),
    [
        (web_token({"exp": 1_800_000_000}), 1_800_000_000),
        (web_token({}), 1_700_000_300),
        (web_token([]), 1_700_000_300),
        ("opaque", 1_700_000_300),
        ("a.b.c", 1_700_000_300),
    ],
)
async def test_a_token_says_when_it_is_read_again(tmp_path: Path, token: str, expires_on: int) -> None:
    path = tmp_path / "token"
    path.write_text(token)
    options = ConnectionOptions(primary=NAMESPACE, auth="token", token=Secret(file=str(path)))
    async with credential_of(options) as credential:
        given = await credential.get_token("https://servicebus.azure.net/.default")
        assert (given.token, given.expires_on) == (token, expires_on)
        path.write_text("renewed")
        assert (await credential.get_token("scope")).token == "renewed"


def test_sas_needs_no_credential() -> None:
    assert credential_of(ConnectionOptions(primary=NAMESPACE)) is None


def test_an_identity_without_its_package_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "azure.identity.aio", None)
    with pytest.raises(InvalidOperationError):
        credential_of(ConnectionOptions(primary=NAMESPACE, auth="default"))


class Identity:
    """A credential of azure-identity, which holds a connection of its own until it is closed."""

    made: ClassVar[list[Identity]] = []

    def __init__(self, **_: Any) -> None:
        self.closed = 0
        self.made.append(self)

    async def get_token(self, *scopes: str, **options: Any) -> Any:
        raise AssertionError("nothing is connected here")

    async def close(self) -> None:
        self.closed += 1


async def test_a_credential_is_closed_with_the_client_that_it_was_made_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "azure.identity.aio", SimpleNamespace(ManagedIdentityCredential=Identity))
    monkeypatch.setattr(Identity, "made", [])
    options = ConnectionOptions(primary=NAMESPACE, auth="managedIdentity")
    for _ in range(2):
        async with open_client(options, paired=False):
            assert Identity.made[-1].closed == 0
    assert [credential.closed for credential in Identity.made] == [1, 1]
