"""Credentials as a source of tokens for one audience.

A shared access key signs a token per audience. A shared access signature is sent as it is. Everything else is an
asynchronous token credential of azure-identity, or an object with the same `get_token`.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any, Final, NamedTuple, Protocol
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


class TokenSource(Protocol):
    """Gives out tokens."""

    async def token(self, audience: str) -> Token:
        """A token that counts for some time.

        Raises:
            ServiceBusAuthenticationError: the credential gives none.
        """


class SharedKey(TokenSource):
    """Signs tokens with a shared access key."""

    def __init__(self, name: str, key: str) -> None:
        self._name = name
        self._key = key

    def __repr__(self) -> str:
        return f"SharedKey({self._name!r})"

    async def token(self, audience: str) -> Token:
        expires_at = int(clock.now() + SIGNED_FOR_S)
        return Token(sign(audience, self._name, self._key, expires_at), SAS_TOKEN, expires_at)


class Signature(TokenSource):
    """A shared access signature that was made elsewhere."""

    def __init__(self, text: str) -> None:
        self._text = text if text.startswith(SCHEME) else SCHEME + text

    def __repr__(self) -> str:
        return "Signature(...)"

    async def token(self, audience: str) -> Token:
        try:
            expires_at = float(parse_qs(self._text[len(SCHEME) :])["se"][0])
        except (KeyError, ValueError):
            expires_at = LATEST_EXPIRY
        return Token(self._text, SAS_TOKEN, expires_at)


class IdentityCredential(TokenSource):
    """Gets tokens from a credential of azure-identity."""

    def __init__(self, credential: Any) -> None:
        self._credential = credential

    def __repr__(self) -> str:
        return f"IdentityCredential({type(self._credential).__name__})"

    async def token(self, audience: str) -> Token:
        try:
            answer = self._credential.get_token(SCOPE)
            access = await answer if inspect.isawaitable(answer) else answer
        except ServiceBusError:
            raise
        except Exception as error:  # a credential may raise anything
            raise ServiceBusAuthenticationError(
                f"{type(self._credential).__name__} gave no token: {type(error).__name__}: {plain_text(str(error))}"
            ) from error
        return Token(access.token, WEB_TOKEN, float(access.expires_on))


class _NamedKey(TokenSource):
    """Signs tokens with an `AzureNamedKeyCredential`, whose key may change."""

    def __init__(self, credential: Any) -> None:
        self._credential = credential

    async def token(self, audience: str) -> Token:
        name, key = self._credential.named_key
        return await SharedKey(name, key).token(audience)


class _SasCredential(TokenSource):
    """Uses the signature of an `AzureSasCredential`, which may change."""

    def __init__(self, credential: Any) -> None:
        self._credential = credential

    async def token(self, audience: str) -> Token:
        return await Signature(self._credential.signature).token(audience)


class _FileSource(TokenSource):
    """Uses the credential that a file has at the time."""

    def __init__(self, file: CredentialFile) -> None:
        self._file = file

    async def token(self, audience: str) -> Token:
        return await token_source(replace(self._file.read(), credential_file=None), None).token(audience)


def token_source(connection: ConnectionString | None, credential: Any) -> TokenSource:
    """Return the source of tokens for a connection string or a credential.

    Raises:
        InvalidOperationError: the credential has no known form.
    """
    if connection is not None:
        if connection.credential_file is not None:
            return _FileSource(CredentialFile(connection))
        if connection.signature is not None:
            return Signature(connection.signature)
        return SharedKey(connection.key_name or "", connection.key or "")
    if hasattr(credential, "named_key"):
        return _NamedKey(credential)
    if hasattr(credential, "signature"):
        return _SasCredential(credential)
    if hasattr(credential, "get_token"):
        return IdentityCredential(credential)
    raise InvalidOperationError(
        f"the credential is a {type(credential).__name__}: give an asynchronous credential of azure-identity, an "
        "AzureNamedKeyCredential or an AzureSasCredential"
    )
