"""Who comes to the broker and means no good: some show tokens that prove nothing for what they ask, some send bytes.

They speak AMQP, by a wire in memory, to the server that everybody else's namespace is served by in production. All the
others go on with their own work meanwhile, and what holds for them must hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Final
from urllib.parse import unquote_plus

from sbclient import clock
from sbclient.amqp import ACCEPTED, DeliveryReceived, IncomingLink, LinkDetached, OutgoingLink
from sbclient.emulator.amqp.connection import serve_amqp
from sbclient.emulator.context import NamespaceContext, entity_rules_of
from sbclient.emulator.faults import WireFaults
from sbclient.emulator.sas import AuthorizationMode, Authorizer
from sbclient.entities import AccessRights, AuthorizationRule
from sbclient.errors import ServiceBusError
from sbclient.hosting.host import BrokerHost
from sbclient.message import ServiceBusMessage
from sbclient.rules.shared_access_signature import sign
from tests.emulator.amqp.client import HOST, Client, connected, wire
from tests.fuzz.amqp_engine import Author
from tests.simulation.history import CANARY, History

FORGERIES: Final = 5
CONVERSATIONS: Final = 4
STOLEN: Final = "stolen"
"""The uids of what a forger sends begin with it."""

PATIENCE_S: Final = 40.0
ENDED_WITHIN_S: Final = 400.0
"""A connection whose client is gone ends by then, however the namespace is struck."""

MOST_BYTES: Final = 2**20

VANDALIZED: Final = ("q", "t")
"""The queues that vandals know."""

ROOT: Final = "root"
SENDING: Final = "sending"
LISTENING: Final = "listening"
OWN: Final = "own"
"""The name of the key that each entity has for itself."""


def own_rule(path: str) -> AuthorizationRule:
    """The rule that an entity has: it counts nowhere else."""
    rights = [AccessRights.SEND, AccessRights.LISTEN]
    return AuthorizationRule(key_name=OWN, rights=rights, primary_key=f"key-of-{path}")


class Forger:
    """Asks for what his tokens do not allow.

    Args:
        paths: of queues and topics, and beside each where its messages come out.
    """

    def __init__(self, host: BrokerHost, history: History, random: Random, paths: list[tuple[str, str]]) -> None:
        self._host = host
        self._history = history
        self._random = random
        self._paths = paths
        self._keys = {name: f"{name}-{random.getrandbits(64):x}" for name in (ROOT, SENDING, LISTENING)}
        rights = {ROOT: list(AccessRights), SENDING: [AccessRights.SEND], LISTENING: [AccessRights.LISTEN]}
        rules = [
            AuthorizationRule(key_name=name, rights=rights[name], primary_key=key) for name, key in self._keys.items()
        ]
        self.context = _context(
            host, random, Authorizer(rules=rules, entity_rules=lambda at: entity_rules_of(host, at))
        )

    async def run(self, within_s: float) -> None:
        """Try a few tokens over so many seconds."""
        for _ in range(FORGERIES):
            await clock.sleep(self._random.uniform(0.1, 1.0) * within_s / FORGERIES)
            path, out = self._random.choice(self._paths)
            forgery = self._random.choice((*TOKENS, *RIGHTS))
            with suppress(TimeoutError, ServiceBusError):
                async with asyncio.timeout(PATIENCE_S), connected(self.context) as client:
                    await self.attempt(client, forgery, path, out)

    async def attempt(self, client: Client, forgery: str, path: str, out: str) -> None:
        """Put one token, and do what it does not allow.

        Args:
            path: to send to.
            out: where what is sent there can be received.
        """
        if forgery in TOKENS:
            status = await self._put(client, path, TOKENS[forgery](self, path))
            self._history.note("forger", forgery, path, status)
            if status == 202:
                self._broken(f"a token that is {forgery} counts for {path}")
        else:
            key_name, right = RIGHTS[forgery]
            token = sign(f"{HOST}/{path}", key_name, self._keys[key_name], self._now() + 600)
            await self._put(client, path, token)
            self._history.note("forger", forgery, path)
            await self.use(client, forgery, path, out, right)
            return
        await self.use(client, forgery, path, out, self._random.choice((AccessRights.SEND, AccessRights.LISTEN)))

    async def use(self, client: Client, forgery: str, path: str, out: str, right: AccessRights) -> None:
        """Do what needs a right; that it succeeds is a violation."""
        if right is AccessRights.MANAGE:
            status, _ = await client.ask(path, "peek-message", {"from-sequence-number": 1, "message-count": 1})
            if status == 200:
                self._broken(f"a token that is {forgery} looks into {path}")
        elif right is AccessRights.SEND:
            link = await client.sender(f"{HOST}/{path}")
            message = ServiceBusMessage(f"{STOLEN}|{CANARY}", partition_key="k", session_id="k", message_id="stolen")
            if not await self._is_refused(client, link) and await client.send(link, message) == ACCEPTED:
                self._broken(f"a token that is {forgery} sends to {path}")
        else:
            receiver = await client.receiver(f"{HOST}/{out}")
            if not await self._is_refused(client, receiver):
                receiver.grant(5)
                client.flush()
                await client.event(DeliveryReceived, receiver)
                self._broken(f"a token that is {forgery} receives from {out}")

    async def _put(self, client: Client, path: str, token: str) -> int:
        """Put a token; what is answered tells nothing of it."""
        arguments = {"type": "servicebus.windows.net:sastoken", "name": f"{HOST}/{path}"}
        answer, _ = await client.request("$cbs", "put-token", token, arguments=arguments)
        text = str(answer)
        signature = token.partition("sig=")[2].partition("&")[0]
        if any(secret in text for secret in (signature, unquote_plus(signature), *self._keys.values()) if secret):
            self._history.violated("I20", f"the answer to a token for {path} tells its signature or a key")
        status: int = answer["status-code"]
        return status

    async def _is_refused(self, client: Client, link: OutgoingLink | IncomingLink) -> bool:
        try:
            await client.event(LinkDetached, link, within_s=1.0)
        except TimeoutError:
            return False
        return True

    def token(self, path: str, *, key: str = ROOT, expires_in_s: float = 600.0) -> str:
        """A token that the broker itself would sign."""
        return sign(f"{HOST}/{path}", key, self._keys[key], self._now() + expires_in_s)

    def foreign(self, path: str, key_name: str, key: str) -> str:
        """A token signed with a key that is not the broker's, or not for this."""
        return sign(f"{HOST}/{path}", key_name, key, self._now() + 600)

    def _now(self) -> float:
        return clock.true_now()

    def _broken(self, what: str) -> None:
        self._history.violated("I19", what)


def _shorter(path: str) -> str:
    """A path that the given one begins with, and does not lie below."""
    return path[:-3] if path[-2] == "/" else path[:-1]


def _tampered(forger: Forger, path: str) -> str:
    token = forger.token(path)
    at = token.index("sig=") + 5
    return token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1 :]


TOKENS: Final[dict[str, Callable[[Forger, str], str]]] = {
    "missing": lambda _, path: "",
    "out of date": lambda forger, path: forger.token(path, expires_in_s=-1.0),
    "tampered with": _tampered,
    "for another name that this one begins with": lambda forger, path: forger.token(_shorter(path)),
    "for what would lie below": lambda forger, path: forger.token(f"{path}/below"),
    "signed with a wrong key": lambda forger, path: forger.foreign(path, ROOT, "wrong"),
    "signed with the key of another entity": lambda forger, path: forger.foreign(path, OWN, f"key-of-{path[:-1]}"),
    "signed with an unknown key": lambda forger, path: forger.foreign(path, "unknown", "nothing"),
    "no token at all": lambda _, path: f"SharedAccessSignature sr={path}",
}
"""What is put on `$cbs`; none of them counts."""

RIGHTS: Final[dict[str, tuple[str, AccessRights]]] = {
    "for sending only": (SENDING, AccessRights.LISTEN),
    "for listening only": (LISTENING, AccessRights.SEND),
    "for sending and not for looking": (SENDING, AccessRights.MANAGE),
}
"""Tokens that count, and what they are not for."""


class Vandal:
    """Sends bytes of no meaning, or of too much, and hangs up.

    It needs no token. It has two queues of its own, and shares the broker with all other clients.
    """

    def __init__(self, host: BrokerHost, history: History, random: Random) -> None:
        self._host = host
        self._history = history
        self._random = random
        self.context = _context(host, random, Authorizer(AuthorizationMode.NONE))

    async def run(self, within_s: float) -> None:
        """Hold a few conversations over so many seconds."""
        for number in range(CONVERSATIONS):
            await clock.sleep(self._random.uniform(0.1, 1.0) * within_s / CONVERSATIONS)
            await self._converse(number)

    async def _converse(self, number: int) -> None:
        near, far = wire()
        server = asyncio.get_running_loop().create_task(serve_amqp(far, self.context, b""), name=f"vandal {number}")
        spoken = Author(self._random).conversation()
        try:
            at = 0
            while at < len(spoken):
                size = self._random.choice((7, 64, 1000, 20_000))
                near.write(spoken[at : at + size])
                at += size
                await clock.sleep(self._random.choice((0.0, 0.0, 0.1, 3.0)))
            await near.close()
            if await clock.wait([server], ENDED_WITHIN_S):
                self._history.violated("I21", f"a vandal is still served {ENDED_WITHIN_S:g} s after he hung up")
            else:
                server.result()
        finally:
            server.cancel()
            await asyncio.gather(server, return_exceptions=True)
        heard = b"".join(near.incoming.get_nowait() for _ in range(near.incoming.qsize()))
        self._history.note("vandal", len(spoken), len(heard))
        if len(heard) > MOST_BYTES:
            self._history.violated("I21", f"a vandal was sent {len(heard)} bytes for {len(spoken)}")
        if CANARY.encode() in heard:
            self._history.violated("I21", "a response to a vandal contained a body")


def _context(host: BrokerHost, random: Random, authorizer: Authorizer) -> NamespaceContext:
    return NamespaceContext(host=host, authorizer=authorizer, wire_faults=WireFaults(random), random=random)
