"""Secrets and credentials, looked up when and where the connection is opened."""

from __future__ import annotations

import base64
import json
import os
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

from sbclient import clock
from sbclient.errors import InvalidOperationError, ServiceBusAuthenticationError
from sbclient.rules.connection_string import ConnectionString, parse_connection_string
from sbclient_spark.options import ConnectionOptions, NamespaceOptions, Secret

MAX_SECRET_LENGTH: Final = 16_384
TOKEN_VALIDITY_S: Final = 300
"""The assumed validity of a token without an expiry; then it is read again."""


def resolve(secret: Secret, what: str) -> str:
    """Return the value of a secret.

    Args:
        what: the name of its option, for errors.

    Raises:
        ServiceBusAuthenticationError: the variable is not set in this process, or the file cannot be read.
    """
    if secret.env is not None:
        value = os.environ.get(secret.env, "").strip()
        if not value:
            raise ServiceBusAuthenticationError(
                f"{what}Env: the variable {secret.env!r} is not set in this process: set it for the driver, and with "
                "spark.executorEnv for the executors"
            )
        return value
    if secret.file is not None:
        try:
            with Path(secret.file).open() as file:
                return file.read(MAX_SECRET_LENGTH).strip()
        except OSError as error:
            raise ServiceBusAuthenticationError(
                f"{what}File: {secret.file!r} cannot be read ({type(error).__name__}): copy it to every machine that "
                "runs the job"
            ) from None
    return secret.value or ""


def connection_string_of(namespace: NamespaceOptions, what: str) -> ConnectionString | None:
    """Return the parsed connection string of a namespace; None if it has a host name instead.

    Raises:
        ServiceBusAuthenticationError: the secret is not available in this process.
        InvalidOperationError: the connection string is invalid; the text contains no key.
    """
    if not namespace.connection_string.is_given:
        return None
    return parse_connection_string(resolve(namespace.connection_string, what))


class AccessToken(NamedTuple):
    """An access token in the form of azure-core."""

    token: str
    expires_on: int

    def __repr__(self) -> str:
        """Omit the token."""
        return f"AccessToken(expires_on={self.expires_on})"


class TokenCredential:
    """A credential with a token from the options. It is read for each request, so that its file can be renewed."""

    def __init__(self, secret: Secret) -> None:
        self._secret = secret

    async def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        """Return the token and its expiry in seconds since 1970."""
        token = resolve(self._secret, "token")
        return AccessToken(token, _expiry_of(token) or int(clock.now()) + TOKEN_VALIDITY_S)

    async def close(self) -> None:
        """Do nothing: the credential holds no resources."""

    async def __aenter__(self) -> TokenCredential:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _expiry_of(token: str) -> int | None:
    """Return the claim `exp` of a JSON web token; None for another token."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError):
        return None
    expiry = claims.get("exp") if isinstance(claims, dict) else None
    return expiry if isinstance(expiry, int) else None


def credential_of(options: ConnectionOptions) -> Any:
    """Return the credential for namespaces with a host name; None with `auth` sas.

    Raises:
        InvalidOperationError: azure-identity is required and not installed.
    """
    if options.auth == "sas":
        return None
    if options.auth == "token":
        return TokenCredential(options.token)
    try:
        identity = import_module("azure.identity.aio")  # an optional dependency
    except ModuleNotFoundError:
        raise InvalidOperationError(
            f"auth {options.auth!r} requires azure-identity: install it on the driver and the executors"
        ) from None
    if options.auth == "managedIdentity":
        return identity.ManagedIdentityCredential(client_id=options.client_id)
    if options.auth == "clientSecret":
        secret = resolve(options.client_secret, "clientSecret")
        return identity.ClientSecretCredential(options.tenant_id, options.client_id, secret)
    return identity.DefaultAzureCredential()
