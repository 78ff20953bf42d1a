"""Secrets and credentials, looked up in the process that opens the connection, at the moment it does."""

from __future__ import annotations

import base64
import binascii
import json
import os
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

from sbclient.clock import Clock
from sbclient.errors import InvalidOperationError, ServiceBusAuthenticationError
from sbclient.rules.connection_string import ConnectionString, parse_connection_string
from sbclient_spark.connection_options import ConnectionOptions, NamespaceOptions, Secret

TOKEN_LIFE_S: Final = 300
"""For how long a token is used that does not say when it expires; then it is read again."""


def resolve(secret: Secret, what: str) -> str:
    """The secret itself.

    Args:
        what: its option's name, for errors.

    Raises:
        ServiceBusAuthenticationError: the variable is not set here, or the file cannot be read.
    """
    if secret.env is not None:
        value = os.environ.get(secret.env, "").strip()
        if not value:
            raise ServiceBusAuthenticationError(
                f"{what}Env names the variable {secret.env!r}, which is not set in this process: set it for the driver "
                "and, with spark.executorEnv, for the executors"
            )
        return value
    if secret.file is not None:
        try:
            return Path(secret.file).read_text().strip()
        except OSError as error:
            raise ServiceBusAuthenticationError(
                f"{what}File names {secret.file!r}, which cannot be read here ({type(error).__name__}): put it on "
                "every machine that runs the job"
            ) from None
    return secret.value or ""


def connection_string_of(namespace: NamespaceOptions, what: str) -> ConnectionString | None:
    """The parsed connection string of a namespace; None where there is a name and a credential instead.

    Raises:
        ServiceBusAuthenticationError: it cannot be found here.
        InvalidOperationError: it cannot be read; the text never repeats a key.
    """
    if not namespace.connection_string.is_given:
        return None
    return parse_connection_string(resolve(namespace.connection_string, what))


class AccessToken(NamedTuple):
    """What a credential gives out, in the shape of azure-core."""

    token: str
    expires_on: int

    def __repr__(self) -> str:
        """Without the token."""
        return f"AccessToken(expires_on={self.expires_on})"


class TokenCredential:
    """A token that somebody else obtained; read again whenever one is wanted, so that a file may be renewed."""

    def __init__(self, secret: Secret, clock: Clock) -> None:
        self._secret = secret
        self._clock = clock

    async def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        """The token, and when it expires in seconds since 1970."""
        token = resolve(self._secret, "token")
        return AccessToken(token, _expiry_of(token) or int(self._clock.now()) + TOKEN_LIFE_S)

    async def close(self) -> None:
        """Nothing is held."""

    async def __aenter__(self) -> TokenCredential:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _expiry_of(token: str) -> int | None:
    """The claim `exp` of a JSON web token; None if it is something else."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (binascii.Error, ValueError):
        return None
    expiry = claims.get("exp") if isinstance(claims, dict) else None
    return expiry if isinstance(expiry, int) else None


def credential_of(options: ConnectionOptions, clock: Clock) -> Any:
    """The credential for namespaces that are given by name; None with `auth` sas.

    Raises:
        InvalidOperationError: azure-identity is not installed where it is needed.
    """
    if options.auth == "sas":
        return None
    if options.auth == "token":
        return TokenCredential(options.token, clock)
    try:
        identity = import_module("azure.identity.aio")  # by name: only those who ask for it need to have it
    except ModuleNotFoundError:
        raise InvalidOperationError(
            f"auth is {options.auth!r}, which needs azure-identity: install it on the driver and the executors"
        ) from None
    if options.auth == "managedIdentity":
        return identity.ManagedIdentityCredential(client_id=options.client_id)
    if options.auth == "clientSecret":
        secret = resolve(options.client_secret, "clientSecret")
        return identity.ClientSecretCredential(options.tenant_id, options.client_id, secret)
    return identity.DefaultAzureCredential()
