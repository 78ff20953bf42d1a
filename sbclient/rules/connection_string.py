"""Parses connection strings of Service Bus, and our own `memory://name` for a broker in this process.

The format of the service is `Endpoint=sb://…;SharedAccessKeyName=…;SharedAccessKey=…[;EntityPath=…]`. The key may be
replaced by `SharedAccessSignature=…`; `UseDevelopmentEmulator=true` selects an emulator without TLS. Ours:
`CredentialFile=/run/secrets/contoso` names a file with a key or a connection string, which is read for each token. No
error and no repr shows a key or a signature.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Final
from urllib.parse import urlsplit

from sbclient.errors import InvalidOperationError
from sbclient.rules.shared_access_signature import SCHEME

MEMORY_SCHEME: Final = "memory://"

_MEMORY_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?")
_KEY_NAME = re.compile(r"[^=\x00-\x1f\x7f]{1,256}")
_FOREIGN_NAME = re.compile(r"[A-Za-z]{1,32}")
_HOST = re.compile(r"[\w.-]+|[0-9A-Fa-f:.]+")
_FIELDS: Final = {
    name.casefold(): name
    for name in (
        "Endpoint",
        "SharedAccessKeyName",
        "SharedAccessKey",
        "SharedAccessSignature",
        "EntityPath",
        "UseDevelopmentEmulator",
        "CredentialFile",
    )
}


@dataclass(frozen=True, slots=True)
class ConnectionString:
    """A namespace and the credential for it.

    Attributes:
        host: the DNS name or address; the name itself for `memory://name`.
        port: the port in the endpoint, or None.
        is_memory: whether the broker runs in this process.
        use_development_emulator: whether the connection is made without TLS.
        key_name, key, signature: the credential; None for the parts that are not given.
        entity_path: the only entity that the credential is valid for, or None.
        credential_file: path of a file that has the credential, or None; see `with_credential`.
    """

    host: str
    port: int | None = None
    is_memory: bool = False
    use_development_emulator: bool = False
    key_name: str | None = None
    key: str | None = field(default=None, repr=False)
    signature: str | None = field(default=None, repr=False)
    entity_path: str | None = None
    credential_file: str | None = None

    @property
    def fully_qualified_namespace(self) -> str:
        """The host, with the port if the endpoint has one."""
        return self.namespace

    @property
    def endpoint(self) -> str:
        """`sb://contoso.servicebus.windows.net/`, or `memory://contoso` for a broker in this process."""
        return self.namespace if self.is_memory else f"sb://{self.namespace}/"

    @property
    def shared_access_key_name(self) -> str | None:
        """`key_name`, under its name in azure-servicebus."""
        return self.key_name

    @property
    def shared_access_key(self) -> str | None:
        """`key`, under its name in azure-servicebus."""
        return self.key

    @property
    def shared_access_signature(self) -> str | None:
        """`signature`, under its name in azure-servicebus."""
        return self.signature

    @property
    def namespace(self) -> str:
        """The identity of the namespace: equal for two connection strings if and only if they mean the same one."""
        if self.is_memory:
            return f"{MEMORY_SCHEME}{self.host}"
        return self.host if self.port is None else f"{self.host}:{self.port}"

    def with_credential(self, content: str) -> ConnectionString:
        """Return this connection string with the credential that its file contains.

        Args:
            content: of the file: a connection string of the same namespace, a signature, or a key of `key_name`.

        Raises:
            InvalidOperationError: it is none of these. The text shows no content.
        """
        text, what = content.strip(), f"the credential file {self.credential_file!r}"
        if not text or "\n" in text:
            raise InvalidOperationError(f"{what} must contain one line: a key, or a connection string")
        if text.startswith(SCHEME):
            return replace(self, key_name=None, key=None, signature=text)
        if ";" not in text:
            if not self.key_name:
                raise InvalidOperationError(
                    f"{what} contains a key: add its name, SharedAccessKeyName=…, to the connection string"
                )
            return replace(self, key=text, signature=None)
        found = parse_connection_string(text)
        if found.namespace != self.namespace or found.credential_file is not None:
            raise InvalidOperationError(
                f"{what} must contain the connection string of {self.namespace}, but it is for {found.namespace}"
            )
        return replace(self, key_name=found.key_name, key=found.key, signature=found.signature)

    def without_credential(self, credential_file: str) -> str:
        """Return the text of a connection string that names a file instead of its credential.

        Raises:
            InvalidOperationError: the path contains a semicolon.
        """
        if ";" in credential_file:
            raise InvalidOperationError(f"the path {credential_file!r} contains a semicolon: rename the file")
        host = f"[{self.host}]" if ":" in self.host else self.host
        fields = {
            "Endpoint": f"sb://{host}{'' if self.port is None else f':{self.port}'}/",
            "EntityPath": self.entity_path,
            "UseDevelopmentEmulator": "true" if self.use_development_emulator else None,
            "CredentialFile": credential_file,
        }
        return ";".join(f"{name}={value}" for name, value in fields.items() if value)


ServiceBusConnectionStringProperties = ConnectionString
"""The name of the class in azure-servicebus."""


def parse_connection_string(conn_str: str) -> ConnectionString:
    """Parse a connection string.

    Raises:
        InvalidOperationError: a part is missing or malformed. The text names the part and shows no secret.
    """
    if not isinstance(conn_str, str) or not conn_str.strip():
        raise InvalidOperationError("the connection string is empty: give Endpoint=sb://…;… or memory://name")
    text = conn_str.strip()
    if text.lower().startswith(MEMORY_SCHEME):
        return _memory(text[len(MEMORY_SCHEME) :])
    fields = _fields(text)
    host, port = _endpoint(fields.get("Endpoint"))
    emulator = fields.get("UseDevelopmentEmulator", "false").lower()
    if emulator not in ("true", "false"):
        # The value is not shown: if a semicolon is missing, it contains a key.
        raise InvalidOperationError("UseDevelopmentEmulator in the connection string is neither true nor false")
    key_name, key = fields.get("SharedAccessKeyName"), fields.get("SharedAccessKey")
    signature = fields.get("SharedAccessSignature")
    if key_name and _KEY_NAME.fullmatch(key_name) is None:
        raise InvalidOperationError(
            f"the SharedAccessKeyName for {host!r} is malformed: it has at most 256 characters and no '=', check that "
            "no semicolon is missing"
        )
    file = fields.get("CredentialFile") or None
    if file is not None and (key is not None or signature is not None):
        raise InvalidOperationError(
            f"the connection string of {host!r} has a credential and a CredentialFile: give one of them"
        )
    if file is None and not signature and (not key_name or not key):
        missing = "SharedAccessKeyName" if not key_name else "SharedAccessKey"
        raise InvalidOperationError(
            f"the connection string of {host!r} has no {missing} and no SharedAccessSignature: add one of them"
        )
    if signature is not None and key is not None:
        raise InvalidOperationError(
            f"the connection string of {host!r} has both SharedAccessKey and SharedAccessSignature: give one of them"
        )
    return ConnectionString(
        host=host,
        port=port,
        use_development_emulator=emulator == "true",
        key_name=key_name,
        key=key,
        signature=signature,
        entity_path=fields.get("EntityPath") or None,
        credential_file=file,
    )


def namespace_name(name: str) -> str:
    """Return the name of a namespace of which it may be the URL, such as `https://contoso.example:443/`.

    Another port than that of HTTPS is kept: it is where an emulator listens.

    Raises:
        InvalidOperationError: it contains a path.
    """
    host = name.strip().partition("://")[2] or name.strip()
    host = host.removesuffix("/").removesuffix(":443")
    if not host or "/" in host:
        # The value is not shown: it may be a connection string.
        raise InvalidOperationError("the namespace is not the name of a host: give contoso.servicebus.windows.net")
    return host


def _memory(name: str) -> ConnectionString:
    name = name.rstrip("/").lower()
    if _MEMORY_NAME.fullmatch(name) is None:
        # The rest is not shown: it may contain a key.
        illegal = next(
            (letter for letter in name if not (letter.isascii() and (letter.isalnum() or letter in ".-"))), ""
        )
        what = f"contains {illegal!r}" if illegal else "begins or ends with a dot or hyphen" if name else "is empty"
        raise InvalidOperationError(
            f"the name after {MEMORY_SCHEME} {what}: use letters, digits, dots and hyphens, as in memory://contoso"
        )
    return ConnectionString(host=name, is_memory=True)


def _fields(text: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    ignored: list[str] = []
    for number, part in enumerate(filter(str.strip, text.split(";")), start=1):
        name, _, value = (each.strip() for each in part.partition("="))
        known = _FIELDS.get(name.casefold())
        if known is None:
            if not value or value.startswith("=") or _FOREIGN_NAME.fullmatch(name) is None:
                # The part is not shown: it may be a piece of a key, since keys end in '='.
                raise InvalidOperationError(
                    f"part {number} of the connection string is unknown: use {', '.join(_FIELDS.values())}"
                )
            if near := get_close_matches(name.casefold(), _FIELDS, n=1, cutoff=0.87):
                raise InvalidOperationError(
                    f"{name} in the connection string is unknown: did you mean {_FIELDS[near[0]]}?"
                )
            ignored.append(name)
            continue
        if known in fields:
            raise InvalidOperationError(f"the connection string has {known} twice: remove one")
        fields[known] = value
    if ignored:
        text = f"parts of the connection string that have no effect here: {', '.join(ignored)}; remove them"
        warnings.warn(text, UserWarning, stacklevel=4)
    return fields


def _endpoint(endpoint: str | None) -> tuple[str, int | None]:
    if not endpoint:
        raise InvalidOperationError("the connection string has no Endpoint: add Endpoint=sb://<namespace>…")
    try:
        parts = urlsplit(endpoint if "://" in endpoint else f"sb://{endpoint}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or _HOST.fullmatch(host) is None:
        # Neither the endpoint nor the error of `urlsplit` is shown: both may contain a secret.
        raise InvalidOperationError(
            "the Endpoint of the connection string has no valid host and port: write it as "
            "sb://contoso.servicebus.windows.net"
        ) from None
    if parts.scheme not in ("sb", "amqp", "amqps", "https") or parts.username is not None:
        raise InvalidOperationError(
            f"Endpoint={parts.scheme}://{host} is not a namespace: write it as sb://contoso.servicebus.windows.net"
        )
    return host, port
