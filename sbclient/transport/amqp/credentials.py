"""Credentials as a source of tokens for one audience.

A shared access key signs a token per audience. A shared access signature is sent as it is. Everything else is an
asynchronous token credential of azure-identity, or an object with the same `get_token`.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import parse_qs

from sbclient import clock
from sbclient.errors import InvalidOperationError, ServiceBusAuthenticationError, ServiceBusError
from sbclient.rules.conditions import plain_text
from sbclient.rules.connection_string import ConnectionString
from sbclient.rules.shared_access_signature import LATEST_EXPIRY, SCHEME, sign
from sbclient.transport.credential_file import CredentialFile

SCOPE: Final = "https://servicebus.azure.net//.default"
SAS_TOKEN: Final = "servicebus.windows.net:sastoken"
WEB_TOKEN: Final = "jwt"
SIGNED_FOR_S: Final = 3600.0
"""How long a token counts that is signed here."""


class Token(NamedTuple):
    """A token for one audience.

    Attributes:
        text: the token.
        kind: the type that put-token names.
        expires_at: seconds since 1970.
    """

    text: str
    kind: str
    expires_at: float

    def __repr__(self) -> str:
        """Without the token."""
        return f"Token(kind={self.kind!r}, expires_at={self.expires_at})"


TokenSource: TypeAlias = Callable[[str], Awaitable[Token]]
"""Returns a token for an audience; raises `ServiceBusAuthenticationError` if the credential gives none."""


def shared_key(name: str, key: str) -> TokenSource:
    """Sign tokens with a shared access key."""

    async def token(audience: str) -> Token:
        expires_at = int(clock.now() + SIGNED_FOR_S)
        return Token(sign(audience, name, key, expires_at), SAS_TOKEN, expires_at)

    return token


def signature(text: str) -> TokenSource:
    """Use a shared access signature that was made elsewhere."""
    text = text if text.startswith(SCHEME) else SCHEME + text

    async def token(audience: str) -> Token:
        try:
            expires_at = float(parse_qs(text[len(SCHEME) :])["se"][0])
        except (KeyError, ValueError):
            expires_at = LATEST_EXPIRY
        return Token(text, SAS_TOKEN, expires_at)

    return token


def identity(credential: Any) -> TokenSource:
    """Get tokens from a credential of azure-identity."""

    async def token(audience: str) -> Token:
        try:
            answer = credential.get_token(SCOPE)
            access = await answer if inspect.isawaitable(answer) else answer
        except ServiceBusError:
            raise
        except Exception as error:  # a credential may raise anything
            raise ServiceBusAuthenticationError(
                f"{type(credential).__name__} gave no token: {type(error).__name__}: {plain_text(str(error))}"
            ) from error
        return Token(access.token, WEB_TOKEN, float(access.expires_on))

    return token


def token_source(connection: ConnectionString | None, credential: Any) -> TokenSource:
    """Return the source of tokens for a connection string or a credential. Files and credentials may change.

    Raises:
        InvalidOperationError: the credential has no known form.
    """
    if connection is not None:
        if connection.credential_file is not None:
            file = CredentialFile(connection)
            return lambda audience: token_source(replace(file.read(), credential_file=None), None)(audience)
        if connection.signature is not None:
            return signature(connection.signature)
        return shared_key(connection.key_name or "", connection.key or "")
    if hasattr(credential, "named_key"):
        return lambda audience: shared_key(*credential.named_key)(audience)
    if hasattr(credential, "signature"):
        return lambda audience: signature(credential.signature)(audience)
    if hasattr(credential, "get_token"):
        return identity(credential)
    raise InvalidOperationError(
        f"the credential is a {type(credential).__name__}: give an asynchronous credential of azure-identity, an "
        "AzureNamedKeyCredential or an AzureSasCredential"
    )
