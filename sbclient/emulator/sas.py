"""Who may do what: tokens that carry their own proof, and the keys they are proved by.

Laws (source: shared access signatures of Service Bus, documented, unless said otherwise):

1. A token is `SharedAccessSignature sr=<URI>&sig=<HMAC-SHA256, base64>&se=<Unix seconds>&skn=<key name>`. What is
   signed is `sr` as it stands there, still percent-encoded, then a line feed, then `se`.
2. A token counts for the path of its URI and what lies below it, by whole segments: one for `q1` never grants `q10`.
   Where the path names an entity, only that entity's parts lie below it: one for `q1` does not grant the queue `q1/x`
   either, one for `contoso` does if no entity has that name. Scheme and host of the URI are not compared, for a broker
   on one's own machine has many names (both our choice).
3. A key is one of the namespace, or of the queue or topic that the path of the URI belongs to. It grants the rights of
   its rule. Either of its two values proves a token.
4. Whatever is wrong is told without the token, its signature or a key in the text.
"""

from __future__ import annotations

import binascii
import hmac
import json
import math
from base64 import b64encode, urlsafe_b64decode
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple
from urllib.parse import quote_plus, unquote, unquote_plus

from sbclient.entities import AccessRights, AuthorizationRule
from sbclient.errors import ServiceBusAuthenticationError, ServiceBusAuthorizationError
from sbclient.rules.entity_path import canonical, entity_of

ROOT_KEY_NAME: Final = "RootManageSharedAccessKey"
ROOT_KEY: Final = "SAS_KEY_VALUE"
"""The key of every namespace unless another is given. Source: Microsoft's emulator; it is meant to be public."""

ALL_RIGHTS: Final = frozenset(AccessRights)
MAX_TOKEN_LENGTH: Final = 65_536
MAX_URI_LENGTH: Final = 1_024
"""Of the resource that a token is for; the longest path of an entity is far shorter."""

LATEST_EXPIRY: Final = 253_402_300_800
"""The end of the year 9999: what ends later never ends."""

_SCHEME: Final = "SharedAccessSignature "
_FIELDS: Final = ("sr", "sig", "se", "skn")


class AuthorizationMode(StrEnum):
    """What proves who a client is."""

    SAS = "sas"
    """Tokens signed with a known key."""

    NONE = "none"
    """Nothing: everybody may do everything."""

    ANY_JWT = "jwt-any"
    """Signed tokens, and besides any well-formed JSON web token, whose signature is not looked at."""


class Grant(NamedTuple):
    """What a token allows.

    Attributes:
        path: the entity that it is for, and everything below; empty = the whole namespace.
        rights: Manage includes the other two.
        expires_at: seconds since 1970; infinity = never.
        entity: the canonical path of the queue or topic whose parts alone it is for; None = all that lies below `path`.
    """

    path: str
    rights: frozenset[AccessRights]
    expires_at: float = math.inf
    entity: str | None = None

    def covers(self, path: str) -> bool:
        """Whether it is for an entity, or a part of one."""
        return is_at_or_below(path, self.path) and self.entity in (None, entity_of(path))

    def check(self, path: str, right: AccessRights) -> None:
        """
        Raises:
            ServiceBusAuthorizationError: it does not allow that.
        """
        if not self.covers(path):
            raise ServiceBusAuthorizationError(
                f"the token is for {self.path or 'the namespace'!r} and does not cover {path or 'the namespace'!r}: "
                "sign one for that"
            )
        if right not in self.rights:
            raise ServiceBusAuthorizationError(
                f"{right} is needed on {path or 'the namespace'!r} and the token's key grants "
                f"{', '.join(sorted(self.rights)) or 'nothing'}: use a key that does"
            )


EVERYTHING: Final = Grant("", ALL_RIGHTS)


def is_at_or_below(path: str, scope: str) -> bool:
    """Whether a path is a scope or lies below it; the empty scope is the whole namespace."""
    inner, outer = canonical(path).strip("/"), canonical(scope).strip("/")
    return not outer or inner == outer or inner.startswith(outer + "/")


def root_rule(key: str = ROOT_KEY) -> AuthorizationRule:
    """The rule that every namespace has."""
    rights = [AccessRights.MANAGE, AccessRights.SEND, AccessRights.LISTEN]
    return AuthorizationRule(key_name=ROOT_KEY_NAME, rights=rights, primary_key=key)


class Authorizer:
    """Checks tokens for one namespace.

    Args:
        mode: what proves who a client is.
        rules: of the namespace.
        entity_rules: asked for the rules of the queue or topic of a path; None where there is none.
    """

    def __init__(
        self,
        mode: AuthorizationMode = AuthorizationMode.SAS,
        *,
        rules: Sequence[AuthorizationRule] = (),
        entity_rules: Callable[[str], Sequence[AuthorizationRule] | None] = lambda _: None,
    ) -> None:
        self.mode = mode
        self._rules = list(rules) or [root_rule()]
        self._entity_rules = entity_rules

    @property
    def is_open(self) -> bool:
        """Whether everybody may do everything, without a token."""
        return self.mode is AuthorizationMode.NONE

    def authenticate(self, token: str, now: float) -> Grant:
        """What a token allows. Its kind is told from its text; `Bearer` before it is skipped.

        Raises:
            ServiceBusAuthenticationError: it proves nothing, or no longer.
        """
        if self.is_open:
            return EVERYTHING
        token = token.strip()
        if token[:7].casefold() == "bearer ":
            token = token[7:].lstrip()
        if not token:
            raise ServiceBusAuthenticationError("there is no token: sign one with a key of the namespace")
        if len(token) > MAX_TOKEN_LENGTH:
            raise _refuse(f"has {len(token)} characters, {MAX_TOKEN_LENGTH} are allowed")
        if token[: len(_SCHEME)].casefold() == _SCHEME.casefold():
            return self._of_signature(token[len(_SCHEME) :], now)
        if self.mode is AuthorizationMode.ANY_JWT:
            return _of_web_token(token, now)
        raise _refuse(f"is no SharedAccessSignature, and the broker runs with --auth {self.mode}")

    def authenticate_key(self, key_name: str, key: str) -> Grant:
        """What the key itself allows, as it is given in SASL PLAIN; keys of entities prove nothing there.

        Raises:
            ServiceBusAuthenticationError: it is none of the namespace.
        """
        if self.is_open:
            return EVERYTHING
        for rule in self._rules:
            for known in _keys(rule):
                if rule.key_name == key_name and hmac.compare_digest(known.encode(), key.encode()):
                    return Grant("", _rights(rule))
        raise ServiceBusAuthenticationError(
            f"key {key_name[:64]!r} is none of the namespace, or has another value: give a key of the namespace"
        )

    def _of_signature(self, text: str, now: float) -> Grant:
        fields = _fields(text)
        scope, key_name = _path_of(fields["sr"]), unquote_plus(fields["skn"])
        try:
            expires_at = float(int(fields["se"]))
        except (ValueError, OverflowError) as error:
            raise _refuse("has an expiry (se) that is no whole number of seconds") from error
        signed = f"{fields['sr']}\n{fields['se']}".encode()
        signature = unquote(fields["sig"]).encode()
        entity = entity_of(scope)
        entity_rules = self._entity_rules(entity) if entity else None
        for rule in (rule for rule in (*(entity_rules or ()), *self._rules) if rule.key_name == key_name):
            for key in _keys(rule):
                proof = b64encode(hmac.digest(key.encode(), signed, "sha256"))
                if hmac.compare_digest(proof, signature):
                    if expires_at <= now:
                        raise _refuse(f"has expired {now - expires_at:.0f} s ago")
                    return Grant(scope, _rights(rule), expires_at, None if entity_rules is None else entity)
        owner = f"{scope[:260]!r} or the namespace" if scope else "the namespace"
        raise _refuse(f"is not signed with a key named {key_name[:64]!r} of {owner}")


def sign(uri: str, key_name: str, key: str, expires_at: float) -> str:
    """A token for a URI, `sb://host/path`, as the SDKs make it."""
    encoded, expiry = quote_plus(uri), str(int(expires_at))
    proof = b64encode(hmac.digest(key.encode(), f"{encoded}\n{expiry}".encode(), "sha256"))
    return f"{_SCHEME}sr={encoded}&sig={quote_plus(proof)}&se={expiry}&skn={quote_plus(key_name)}"


def _refuse(what: str) -> ServiceBusAuthenticationError:
    return ServiceBusAuthenticationError(f"the token {what}: sign a new one with a key of the namespace")


def _fields(text: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for part in text.split("&"):
        name, equals, value = part.partition("=")
        name = name.strip()
        if not equals or name in fields:
            raise _refuse("has a part without a name, or one name twice")
        fields[name] = value.strip()
    missing = [name for name in _FIELDS if not fields.get(name)]
    if missing:
        raise _refuse(f"has no {' and no '.join(missing)}")
    return fields


def _path_of(encoded_uri: str) -> str:
    """The entity path in the URI of a token; one without a scheme is `host/path`."""
    uri = unquote_plus(encoded_uri)
    scheme, has_scheme, rest = uri.partition("://")
    if not has_scheme:
        rest = scheme
    if len(uri) > MAX_URI_LENGTH:
        raise _refuse(f"is for a resource (sr) of {len(uri)} characters, {MAX_URI_LENGTH} are allowed")
    host, slash, path = rest.partition("?")[0].partition("/")
    if not host or not (has_scheme or slash):
        raise _refuse("is for a resource (sr) that is no URI such as sb://host/queue")
    return unquote(path).strip("/")


def _keys(rule: AuthorizationRule) -> list[str]:
    return [key for key in (rule.primary_key, rule.secondary_key) if key]


def _rights(rule: AuthorizationRule) -> frozenset[AccessRights]:
    return ALL_RIGHTS if AccessRights.MANAGE in rule.rights else frozenset(rule.rights)


def _of_web_token(token: str, now: float) -> Grant:
    parts = token.split(".")
    if len(parts) != 3 or not all(parts[:2]):
        raise _refuse("is neither a SharedAccessSignature nor a JSON web token of three parts")
    header, claims = _json_part(parts[0]), _json_part(parts[1])
    if "alg" not in header:
        raise _refuse("is a JSON web token whose header names no algorithm")
    expires_at = claims.get("exp", LATEST_EXPIRY)
    is_number = isinstance(expires_at, int | float) and not isinstance(expires_at, bool)
    if not (is_number and expires_at >= 0):  # NaN, which JSON texts may hold here, is not
        raise _refuse("is a JSON web token whose expiry (exp) is no number of seconds since 1970")
    if expires_at >= LATEST_EXPIRY:
        expires_at = math.inf
    if expires_at <= now:
        raise _refuse(f"has expired {now - expires_at:.0f} s ago")
    return Grant("", ALL_RIGHTS, expires_at)


def _json_part(part: str) -> dict[str, Any]:
    try:
        value = json.loads(urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (binascii.Error, ValueError, RecursionError):  # it would show the part
        raise _refuse("is a JSON web token with a part that is no JSON") from None
    if not isinstance(value, dict):
        raise _refuse("is a JSON web token with a part that is no JSON object")
    return value
