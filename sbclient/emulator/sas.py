"""Authorization by shared access signatures: tokens, and the keys that sign them.

Laws (source: shared access signatures of Service Bus, documented, unless said otherwise):

1. `rules/shared_access_signature.py` describes and signs tokens.
2. A token covers the path of its URI and the paths below, by whole segments: one for `q1` does not cover `q10`. If the
   path is that of an entity, only the parts of that entity are below it: a token for `q1` does not cover the queue
   `q1/x`, but one for `contoso` covers `contoso/x` if no entity has the name `contoso`. Scheme and host of the URI are
   not compared, because a local broker has many names (both our choice).
   The messages of an entity over HTTP, `q1/messages` and below, are parts of it unless an entity has that name.
3. A key belongs to the namespace, or to the queue or topic in the path of the URI. It grants the rights of its rule.
   Either of its two values is valid.
4. No error text contains a token, a signature or a key.
5. Over AMQP (source: claims-based security of Service Bus, documented): a token is valid for its audience and what is
   below, within the scope of the token itself: `sb://host/a` covers `a` and `a/b`, but not `ab`. A newer token for the
   same audience replaces the older one, also if it grants less. A token ends at its expiry or with the connection.
   Links that need more rights than are left end.
"""

from __future__ import annotations

import binascii
import hmac
import json
import math
from base64 import urlsafe_b64decode
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, unquote_plus

from sbclient.entities import AccessRights, AuthorizationRule
from sbclient.errors import ServiceBusAuthenticationError, ServiceBusAuthorizationError, ServiceBusQuotaExceededError
from sbclient.rules.entity_path import canonical, entity_of
from sbclient.rules.shared_access_signature import LATEST_EXPIRY, SCHEME, signature_of

ROOT_KEY_NAME: Final = "RootManageSharedAccessKey"
ROOT_KEY: Final = "SAS_KEY_VALUE"
"""The default key of every namespace. Source: the emulator of Microsoft; it is public on purpose."""

ALL_RIGHTS: Final = frozenset(AccessRights)
MAX_TOKEN_LENGTH: Final = 65_536
MAX_URI_LENGTH: Final = 1_024
"""Of the URI in a token; the longest entity path is far shorter."""

_FIELDS: Final = ("sr", "sig", "se", "skn")


class ExpiryMissingError(ServiceBusAuthenticationError):
    """A shared access signature has no expiry, which the service does not report as an invalid token."""


class AuthorizationMode(StrEnum):
    """How clients authenticate."""

    SAS = "sas"
    """By tokens that are signed with a known key."""

    NONE = "none"
    """Not at all: every client has all rights."""

    ANY_JWT = "jwt-any"
    """By signed tokens, or by any well-formed JSON web token, whose signature is not checked."""


class Grant(NamedTuple):
    """The rights that a token grants.

    Attributes:
        path: covered with everything below; empty = the whole namespace.
        rights: Manage includes the other two.
        expires_at: seconds since 1970; infinity = never.
        entity: the canonical path of the queue or topic that the grant is limited to; None = no limit.
    """

    path: str
    rights: frozenset[AccessRights]
    expires_at: float = math.inf
    entity: str | None = None

    def covers(self, path: str) -> bool:
        """Whether the grant covers a path."""
        is_of_entity = self.entity in (None, entity_of(path)) or canonical(path) == canonical(self.path)
        return is_at_or_below(path, self.path) and is_of_entity

    def check(self, path: str, right: AccessRights) -> None:
        """
        Raises:
            ServiceBusAuthorizationError: the grant lacks the right on that path.
        """
        if not self.covers(path):
            raise ServiceBusAuthorizationError(
                f"the token is for {self.path or 'the namespace'!r} and does not cover {path or 'the namespace'!r}: "
                "sign one for that"
            )
        if right not in self.rights:
            raise ServiceBusAuthorizationError(
                f"{right} is needed on {path or 'the namespace'!r}, but the key of the token grants "
                f"{', '.join(sorted(self.rights)) or 'nothing'}: use a key that does"
            )


EVERYTHING: Final = Grant("", ALL_RIGHTS)


def is_at_or_below(path: str, scope: str) -> bool:
    """Whether a path equals a scope or is below it; the empty scope is the whole namespace."""
    inner, outer = canonical(path).strip("/"), canonical(scope).strip("/")
    return not outer or inner == outer or inner.startswith(outer + "/")


def owner_of_messages(path: str) -> str:
    """The canonical path of the entity above `/messages` in a path; empty if there is none."""
    above, is_below, _ = f"{canonical(path).strip('/')}/".rpartition("/messages/")
    return above if is_below else ""


def root_rule(key: str = ROOT_KEY) -> AuthorizationRule:
    """The authorization rule that every namespace has."""
    rights = [AccessRights.MANAGE, AccessRights.SEND, AccessRights.LISTEN]
    return AuthorizationRule(key_name=ROOT_KEY_NAME, rights=rights, primary_key=key)


class Authorizer:
    """Checks tokens for one namespace.

    Args:
        mode: how clients authenticate.
        rules: of the namespace.
        entity_rules: returns the rules of the queue or topic with a path; None if there is none.
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
        """Whether every client has all rights without a token."""
        return self.mode is AuthorizationMode.NONE

    def accepts_key(self, key: str) -> bool:
        """Whether a rule of the namespace has a key of that value."""
        return any(key in _keys(rule) for rule in self._rules)

    def authenticate(self, token: str, now: float) -> Grant:
        """The grant of a token. The text of the token determines its type; a leading `Bearer` is skipped.

        Raises:
            ServiceBusAuthenticationError: the token is not valid, or has expired.
        """
        if self.is_open:
            return EVERYTHING
        token = token.strip()
        if token[:7].casefold() == "bearer ":
            token = token[7:].lstrip()
        if not token:
            raise ServiceBusAuthenticationError("the token is missing: sign one with a key of the namespace")
        if len(token) > MAX_TOKEN_LENGTH:
            raise _refuse(f"has {len(token)} characters, {MAX_TOKEN_LENGTH} are allowed")
        if token[: len(SCHEME)].casefold() == SCHEME.casefold():
            return self._of_signature(token[len(SCHEME) :], now)
        if self.mode is AuthorizationMode.ANY_JWT:
            return _of_web_token(token, now)
        raise _refuse(f"is not a SharedAccessSignature, and the emulator runs with --auth {self.mode}")

    def authenticate_key(self, key_name: str, key: str) -> Grant:
        """The grant of a key of the namespace, given by SASL PLAIN; keys of entities are not accepted there.

        Raises:
            ServiceBusAuthenticationError: the namespace has no such key.
        """
        if self.is_open:
            return EVERYTHING
        for rule in self._rules:
            for known in _keys(rule):
                if rule.key_name == key_name and hmac.compare_digest(known.encode(), key.encode()):
                    return Grant("", _rights(rule))
        raise ServiceBusAuthenticationError(
            f"key {key_name[:64]!r} is not a key of the namespace, or has another value: give a key of the namespace"
        )

    def _of_signature(self, text: str, now: float) -> Grant:
        fields = _fields(text)
        scope, key_name = _path_of(fields["sr"]), unquote_plus(fields["skn"])
        try:
            expires_at = float(int(fields["se"]))
        except (ValueError, OverflowError) as error:
            raise _refuse("has an expiry (se) that is not a whole number of seconds") from error
        signature = unquote(fields["sig"]).encode()
        entity = entity_of(scope)
        entity_rules = self._entity_rules(entity) if entity else None
        owner_rules: Sequence[AuthorizationRule] = ()
        if entity_rules is None and (owner := owner_of_messages(entity)):
            entity, owner_rules = owner, self._entity_rules(owner) or ()
        limit = None if entity_rules is None else entity
        signers = [(rule, limit) for rule in (*(entity_rules or ()), *self._rules)]
        signers += [(rule, entity) for rule in owner_rules]
        for rule, limit in signers:
            for key in _keys(rule) if rule.key_name == key_name else ():
                if hmac.compare_digest(signature_of(fields["sr"], fields["se"], key), signature):
                    if expires_at <= now:
                        raise _expired(expires_at)
                    return Grant(scope, _rights(rule), expires_at, limit)
        owner = f"{scope[:260]!r} or the namespace" if scope else "the namespace"
        raise ServiceBusAuthenticationError(
            "InvalidSignature: The token has an invalid signature. It is not signed with a key named "
            f"{key_name[:64]!r} of {owner}: sign a new one with a key of the namespace"
        )


def _refuse(what: str) -> ServiceBusAuthenticationError:
    return ServiceBusAuthenticationError(
        f"MalformedToken: The token {what}. Sign a new one with a key of the namespace"
    )


def _expired(at: float) -> ServiceBusAuthenticationError:
    """The error in the words of the service, for which programs search."""
    time = f"{datetime.fromtimestamp(max(at, 0.0), UTC):%Y-%m-%d %H:%M:%S}Z"
    return ServiceBusAuthenticationError(
        f"ExpiredToken: The token is expired. Expiration time: '{time}'. Sign a new one with a key of the namespace"
    )


def _fields(text: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for part in text.split("&"):
        name, equals, value = part.partition("=")
        name = name.strip()
        if not equals or name in fields:
            raise _refuse("has a part without a name, or one name twice")
        fields[name] = value.strip()
    missing = [name for name in _FIELDS if not fields.get(name)]
    if missing == ["se"]:
        raise ExpiryMissingError("the token has no se: give it an expiry")
    if missing:
        raise _refuse(f"has no {' and no '.join(missing)}")
    return fields


def _path_of(encoded_uri: str) -> str:
    """The entity path in the URI of a token; one without a scheme is `host/path`, or `host` for the namespace."""
    uri = unquote_plus(encoded_uri)
    scheme, has_scheme, rest = uri.partition("://")
    if not has_scheme:
        rest = scheme
    if len(uri) > MAX_URI_LENGTH:
        raise _refuse(f"is for a resource (sr) of {len(uri)} characters, {MAX_URI_LENGTH} are allowed")
    host, _, path = rest.partition("?")[0].partition("/")
    if not host:
        raise _refuse("is for a resource (sr) that is not a URI such as sb://host/queue")
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
    if not (is_number and expires_at >= 0):  # false for NaN, which Python accepts in JSON
        raise _refuse("is a JSON web token whose expiry (exp) is not a number of seconds since 1970")
    if expires_at >= LATEST_EXPIRY:
        expires_at = math.inf
    if expires_at <= now:
        raise _expired(expires_at)
    return Grant("", ALL_RIGHTS, expires_at)


def _json_part(part: str) -> dict[str, Any]:
    try:
        value = json.loads(urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (binascii.Error, ValueError, RecursionError):  # the original error shows the part
        raise _refuse("is a JSON web token with a part that is not JSON") from None
    if not isinstance(value, dict):
        raise _refuse("is a JSON web token with a part that is not a JSON object")
    return value


MAX_GRANTS: Final = 5_000
"""The most audiences of one connection."""


class Grants:
    """The tokens of one AMQP connection, by audience.

    Attributes:
        has_begun: whether there has been a token.
        next_expiry_at: the time of the next expiry; infinity if there is none.
    """

    def __init__(self) -> None:
        self.has_begun = False
        self.next_expiry_at = math.inf
        self._grants: dict[str, Grant] = {}

    def __bool__(self) -> bool:
        """Whether any token is valid."""
        return bool(self._grants)

    def add(self, path: str, grant: Grant) -> bool:
        """Add a grant for a path and everything below; the empty path is the whole namespace.

        Returns: whether the grant may allow less than the one that it replaces.

        Raises:
            ServiceBusQuotaExceededError: there are too many audiences.
        """
        key = canonical(path)
        if key not in self._grants and len(self._grants) >= MAX_GRANTS:
            raise ServiceBusQuotaExceededError(
                f"this connection has tokens for {len(self._grants)} audiences, {MAX_GRANTS} are allowed: "
                "use one token for the whole namespace"
            )
        replaced = self._grants.get(key)
        self._grants[key] = grant
        self.has_begun = True
        self._update_next_expiry()
        return replaced is not None and (
            not grant.rights >= replaced.rights or (grant.path, grant.entity) != (replaced.path, replaced.entity)
        )

    def rights(self, path: str, now: float) -> frozenset[AccessRights]:
        """The rights on an entity; empty if no token covers it."""
        allowed: frozenset[AccessRights] = frozenset()
        key = canonical(path)
        while True:
            grant = self._grants.get(key)
            if grant is not None and now < grant.expires_at and grant.covers(path):
                allowed |= grant.rights
            if not key:
                return allowed
            key = key.rpartition("/")[0]

    def drop_expired(self, now: float) -> bool:
        """Remove expired tokens; returns whether there were any."""
        if now < self.next_expiry_at:
            return False
        for key in [key for key, grant in self._grants.items() if grant.expires_at <= now]:
            del self._grants[key]
        self._update_next_expiry()
        return True

    def _update_next_expiry(self) -> None:
        self.next_expiry_at = min((grant.expires_at for grant in self._grants.values()), default=math.inf)
