"""The tokens of clients: signer, rights, scope and validity.

A scope is derived from the requested path: the same path, a longer one, a sibling's. A flaw is any other defect of the
token.
"""

from __future__ import annotations

import json
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Final
from urllib.parse import quote

from sbclient.emulator.sas import AuthorizationMode
from sbclient.entities import AccessRights
from sbclient.rules.shared_access_signature import sign
from tests.rights.world import KEY_NAME, OTHER, SECONDARY, TOP_ENTITIES, TOPIC, key_of

HOST: Final = "contoso.example"
LIFE_S: Final = 3_600.0

EVERY_RIGHT: Final = frozenset(AccessRights)
RIGHTS: Final = tuple(frozenset(chosen) for size in range(4) for chosen in combinations(AccessRights, size))
"""All eight."""


@dataclass(frozen=True)
class Scope:
    """The signer and the resource of a token.

    Attributes:
        name: what it is to the path that is asked for.
        home: the queue or topic whose rule signs; empty = the namespace's.
        uri: the resource of the token, as it is signed.
        path: of the entity that the resource names, not encoded.
    """

    name: str
    home: str
    uri: str
    path: str


def scopes_of(target: str) -> Iterator[Scope]:
    """Yield all scopes of a token in a request for a path."""

    def scope(name: str, home: str, path: str, uri: str | None = None) -> Scope:
        return Scope(name, home, uri if uri is not None else f"sb://{HOST}/{path}", path)

    top = target
    for mark in ("/$", "/Subscriptions/"):
        top = top.partition(mark)[0]
    yield scope("the namespace", "", "")
    yield scope("the namespace, without a slash", "", "", f"sb://{HOST}")
    yield scope("the namespace by its https address", "", "", f"https://{HOST}:443/")
    yield scope("the path", "", target)
    yield scope("the path at another host, for a broker has many names", "", target, f"sb://localhost:5672/{target}")
    yield scope("the path in capitals", "", target.upper())
    yield scope("the path with a slash behind", "", target, f"sb://{HOST}/{target}/")
    yield scope("the path, each letter escaped", "", target, f"sb://{HOST}/{_escaped(target)}")
    yield scope("the path without a scheme", "", target, f"{HOST}/{target}")
    yield scope("the path with a query", "", target, f"sb://{HOST}/{target}?a=b")
    yield scope("another entity", "", OTHER)
    yield scope("a longer name", "", target + "0")
    yield scope("a shorter name", "", target[:-1])
    yield scope("a queue below", "", target + "/x")
    yield scope("its management node", "", target + "/$management")
    yield scope("its dead letters", "", target + "/$DeadLetterQueue")
    yield scope("its messages over HTTP", "", target + "/messages")
    yield scope("a way round by dots", "", f"{OTHER}/../{target}")
    if not target:
        yield scope("the list of queues", "", "$Resources/Queues")
        yield scope("the list of topics", "", "$Resources/Topics")
        yield scope("the facts about the namespace", "", "$namespaceinfo")
    if "/" in target:
        yield scope("what it lies below", "", target.partition("/")[0])
    if "/Subscriptions/" in target:
        yield scope("another subscription", "", f"{TOPIC}/Subscriptions/su")
        yield scope("all subscriptions", "", f"{TOPIC}/Subscriptions")
        yield scope("its rules", "", f"{target}/Rules")
    if target == TOPIC:
        yield scope("its subscriptions", "", f"{TOPIC}/Subscriptions")
    if top in TOP_ENTITIES:
        yield scope("the path by the entity's key", top, target)
        yield scope("the entity by its key", top, top)
        yield scope("its messages over HTTP by the entity's key", top, target + "/messages")
        yield scope("the namespace by the entity's key", top, "")
        yield scope("another entity by the entity's key", top, OTHER)
        yield scope("a longer name by the entity's key", top, top + "0")
        yield scope("a queue below by the entity's key", top, top + "/x")
        yield scope("the path by another entity's key", OTHER, target)
    for name, home in (("a longer name", top + "0"), ("a shorter name", top[:-1]), ("a queue below", top + "/x")):
        if home in TOP_ENTITIES:
            yield scope(f"{name} by its key", home, home)
            yield scope(f"the path by the key of {name}", home, target)
    above = target.rpartition("/")[0]
    if above in TOP_ENTITIES and top != above:
        yield scope("a queue above by its key", above, above)
        yield scope("the path by the key of a queue above", above, target)


def _escaped(path: str) -> str:
    return "".join(f"%{ord(char):02x}" if char.isalnum() else char for char in path)


def own_scope(target: str) -> Scope:
    """Return the scope of the path itself, signed with a key of the namespace."""
    return next(scope for scope in scopes_of(target) if scope.name == "the path")


@dataclass(frozen=True)
class Flaw:
    """A defect of a token.

    Attributes:
        is_good: whether the token is valid despite it.
        write: returns the token for a scope at a time.
        mode: of the broker.
        is_open: whether the broker needs no token, or accepts any token for everything.
    """

    name: str
    is_good: bool
    write: Callable[[Scope, float], str | None]
    mode: AuthorizationMode = AuthorizationMode.SAS
    is_open: bool = False


def signed(
    scope: Scope, now: float, *, lifetime_s: float = LIFE_S, key: str | None = None, name: str = KEY_NAME
) -> str:
    return sign(scope.uri, name, key_of(scope.home) if key is None else key, now + lifetime_s)


def web_token(lifetime_s: float | None, now: float, *, header: str = '{"alg":"RS256","typ":"JWT"}') -> str:
    claims = {"aud": "https://servicebus.azure.net", "sub": "me"} | (
        {} if lifetime_s is None else {"exp": now + lifetime_s}
    )
    parts = (header.encode(), json.dumps(claims).encode(), b"an unknown signature")
    return ".".join(urlsafe_b64encode(part).decode().rstrip("=") for part in parts)


def _with_field(token: str, name: str, value: str) -> str:
    scheme, _, fields = token.partition(" ")
    replaced = [f"{name}={value}" if field.startswith(f"{name}=") else field for field in fields.split("&")]
    return f"{scheme} {'&'.join(replaced)}"


def _flaw(
    name: str,
    is_good: bool,
    write: Callable[[Scope, float], str | None],
    mode: AuthorizationMode = AuthorizationMode.SAS,
    *,
    is_open: bool = False,
) -> Flaw:
    return Flaw(name, is_good, write, mode, is_open)


_FORGED = b64encode(bytes(32)).decode()
_ANY, _NONE = AuthorizationMode.ANY_JWT, AuthorizationMode.NONE

FLAWS: Final = (
    _flaw("none", True, signed),
    _flaw(
        "signed with the secondary key", True, lambda scope, now: signed(scope, now, key=SECONDARY + key_of(scope.home))
    ),
    _flaw("called a bearer's", True, lambda scope, now: f"Bearer {signed(scope, now)}"),
    _flaw("its last second", True, lambda scope, now: signed(scope, now, lifetime_s=1)),
    _flaw("ends now", False, lambda scope, now: signed(scope, now, lifetime_s=0)),
    _flaw("expired", False, lambda scope, now: signed(scope, now, lifetime_s=-1)),
    _flaw("expired long ago", False, lambda scope, now: sign(scope.uri, KEY_NAME, key_of(scope.home), 1)),
    _flaw("a wrong key", False, lambda scope, now: signed(scope, now, key="guess")),
    _flaw("an empty key", False, lambda scope, now: signed(scope, now, key="")),
    _flaw("the key of another namespace", False, lambda scope, now: signed(scope, now, key="key of contoso-backup")),
    _flaw("an unknown key name", False, lambda scope, now: signed(scope, now, name="unknown")),
    _flaw(
        "a forged signature", False, lambda scope, now: _with_field(signed(scope, now), "sig", quote(_FORGED, safe=""))
    ),
    _flaw("no signature", False, lambda scope, now: _with_field(signed(scope, now), "sig", "")),
    _flaw(
        "a moved end",
        False,
        lambda scope, now: _with_field(signed(scope, now, lifetime_s=-1), "se", str(int(now) + 60)),
    ),
    _flaw("no end", False, lambda scope, now: _with_field(signed(scope, now), "se", "never")),
    _flaw(
        "a widened resource",
        False,
        lambda scope, now: _with_field(signed(scope, now), "sr", quote(f"https://{HOST}/", safe="")),
    ),
    _flaw("cut short", False, lambda scope, now: signed(scope, now)[:40]),
    _flaw("one field twice", False, lambda scope, now: signed(scope, now) + f"&skn={KEY_NAME}"),
    _flaw("the key itself", False, lambda scope, now: key_of(scope.home)),
    _flaw("no token", False, lambda scope, now: None),
    _flaw("an empty token", False, lambda scope, now: ""),
    _flaw("a web token where none counts", False, lambda scope, now: web_token(LIFE_S, now)),
    _flaw("a web token", True, lambda scope, now: web_token(LIFE_S, now), _ANY, is_open=True),
    _flaw("a web token without an end", True, lambda scope, now: web_token(None, now), _ANY, is_open=True),
    _flaw("an expired web token", False, lambda scope, now: web_token(-1, now), _ANY),
    _flaw("a web token without an algorithm", False, lambda scope, now: web_token(LIFE_S, now, header="{}"), _ANY),
    _flaw("half a web token", False, lambda scope, now: web_token(LIFE_S, now).rpartition(".")[0], _ANY),
    _flaw("a signed one where web tokens count too", True, signed, _ANY),
    _flaw("no token where web tokens count too", False, lambda scope, now: None, _ANY),
    _flaw("no token where none is needed", True, lambda scope, now: None, _NONE, is_open=True),
    _flaw(
        "an expired one where none is needed",
        True,
        lambda scope, now: signed(scope, now, lifetime_s=-1),
        _NONE,
        is_open=True,
    ),
)
FLAWLESS: Final = FLAWS[0]
