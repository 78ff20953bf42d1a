"""No key, signature or body is shown by an error, a repr, a log event, a status or a pickle of an error.

Bodies are watched in every run of the simulation; here it is keys and signatures, in connection strings that are
damaged in every way that a hand can damage one.
"""

from __future__ import annotations

import io
import logging
import pickle
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

import pytest

from sbclient.client.client import ServiceBusClient
from sbclient.emulator.sas import Grant
from sbclient.entities import AccessRights, AuthorizationRule
from sbclient.errors import ServiceBusError
from sbclient.message import ServiceBusMessage
from sbclient.rules.connection_string import parse_connection_string
from sbclient.testing import memory_pair

KEY = "canarykey4711"
SIGNATURE = "canarysig4711"
BODY = "canarybody4711"
CANARIES = (KEY, SIGNATURE, BODY)

ENDPOINT = "Endpoint=sb://contoso.servicebus.windows.net/"
WITH_KEY = (
    ENDPOINT,
    "SharedAccessKeyName=root",
    f"SharedAccessKey={KEY}",
    "EntityPath=orders",
    "UseDevelopmentEmulator=true",
)
WITH_SIGNATURE = (
    ENDPOINT,
    f"SharedAccessSignature=SharedAccessSignature sr=sb%3A%2F%2Fcontoso&sig={SIGNATURE}&se=99&skn=root",
    "EntityPath=orders",
    "UseDevelopmentEmulator=true",
)


def damaged(random: Random, parts: Sequence[str]) -> str:
    """A connection string with its parts in any order, and a few slips of the hand."""
    text = ";".join(random.sample(parts, len(parts)))
    for _ in range(random.randint(0, 3)):
        at = random.randrange(len(text))
        slip = random.randrange(6)
        if slip == 0:
            text = text[:at] + text[at + 1 :]
        elif slip == 1:
            text = text[:at] + random.choice(";=:/@[]? %#\n\\é") + text[at:]
        elif slip == 2 and ";" in text:
            text = text.replace(";", random.choice(("", ",", " ", "=")), 1)
        elif slip == 3 and "=" in text:
            where = random.choice([place for place, sign in enumerate(text) if sign == "="])
            text = text[:where] + random.choice(("", ":", ";")) + text[where + 1 :]
        elif slip == 4:
            text += ";" + random.choice(parts)
        else:
            text = text.replace(random.choice(("Endpoint", "sb://", "SharedAccessKeyName", "root", ".")), "", 1)
    return text


def told_by(error: BaseException) -> str:
    """All that a log, a repr and a pickle of an error show."""
    shown = "".join(traceback.format_exception(error))
    return f"{shown} {error!r} {error.args} {pickle.dumps(error)!r}"


def assert_silent(text: str, where: str) -> None:
    found = [canary for canary in CANARIES if canary in text.lower()]
    assert not found, f"{where} tells {found}"


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.format = lambda record: f"{record.msg} {record.__dict__}"  # type: ignore[method-assign]
    logger = logging.getLogger("sbclient")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield stream
    logger.removeHandler(handler)
    logger.setLevel(level)


@pytest.mark.parametrize("parts", [WITH_KEY, WITH_SIGNATURE], ids=["key", "signature"])
def test_no_error_shows_an_invalid_connection_string(parts: Sequence[str], logged: io.StringIO) -> None:
    random = Random("damaged connection strings")
    refused = 0
    for _ in range(4000):
        text = damaged(random, parts)
        try:
            parsed = parse_connection_string(text)
        except ServiceBusError as error:
            refused += 1
            assert_silent(told_by(error), f"the error of {text!r}")
        else:
            shown = replace(parsed, entity_path=None)  # it is a path of the application
            assert_silent(f"{shown!r} {shown} {shown.namespace}", f"the repr of {text!r}")
    assert refused > 1000
    assert_silent(logged.getvalue(), "the log")


async def test_no_repr_of_a_client_shows_a_key(logged: io.StringIO) -> None:
    client = ServiceBusClient.from_connection_string(";".join(WITH_KEY[:3]))
    sender = client.get_queue_sender("orders")
    receiver = client.get_queue_receiver("orders")
    for thing in (client, sender, receiver, client.administration, client.fully_qualified_namespace):
        assert_silent(f"{thing!r} {thing}", type(thing).__name__)
    await client.close()
    assert_silent(logged.getvalue(), "the log")


def test_keys_in_descriptions_and_grants_stay_out_of_their_repr() -> None:
    rule = AuthorizationRule(
        key_name="root", rights=[AccessRights.SEND], primary_key=KEY, secondary_key=f"{KEY}-second"
    )
    assert_silent(repr(rule), "a rule")
    grant = Grant("orders", frozenset((AccessRights.SEND,)))
    with pytest.raises(ServiceBusError) as refusal:
        grant.check("bills", AccessRights.SEND)
    assert_silent(told_by(refusal.value), "a refusal")


async def test_no_repr_of_a_message_or_a_pair_shows_a_body(logged: io.StringIO) -> None:
    pair = memory_pair(seed=1)
    message = ServiceBusMessage(BODY, message_id="m", application_properties={"note": "n"})
    async with pair.client() as client, client.get_queue_sender("orders") as sender:
        await client.administration.create_queue("orders")
        await sender.send_messages(message)
        client.pair.force_failover("orders")
        await sender.send_messages(message)
        batch = await sender.create_message_batch()
        batch.add_message(message)
        shown = (message, batch, sender, client, client.pair.status(), client.pair.events())
        for thing in shown:
            assert_silent(repr(thing), type(thing).__name__)
        with pytest.raises(ServiceBusError) as refusal:
            await sender.send_messages(ServiceBusMessage(BODY * 100_000))
        assert_silent(told_by(refusal.value), "a refusal")
    assert_silent(logged.getvalue(), "the log")
