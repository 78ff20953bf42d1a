"""A configuration with keys in it, damaged in every way: what is told of it shows none of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from sbclient.emulator import Emulator
from sbclient.errors import ServiceBusError
from sbclient.rules.connection_string import parse_connection_string
from tests.secrets.canaries import KEY, SECOND_KEY, SIGNATURE, connection_string
from tests.secrets.ear import Ear, listening

RULE = {"KeyName": "app", "Rights": ["Send", "Listen"], "PrimaryKey": KEY, "SecondaryKey": SECOND_KEY}


def configuration() -> Any:
    queue = {"Name": "orders", "Properties": {"LockDuration": "PT1M", "AuthorizationRules": [RULE]}}
    topic = {"Name": "prices", "Properties": {"AuthorizationRules": [RULE]}, "Subscriptions": [{"Name": "eu"}]}
    namespace = {"Name": "contoso", "AuthorizationRules": [RULE], "Queues": [queue], "Topics": [topic]}
    return json.loads(json.dumps({"UserConfig": {"Namespaces": [namespace], "Logging": {"Type": "File"}}}))


@pytest.fixture
def ear() -> Iterator[Ear]:
    with listening() as ear:
        yield ear


def told(ear: Ear, path: Path, text: str) -> bool:
    """Whether a configuration is refused; what is told is heard."""
    path.write_text(text)
    try:
        emulator = Emulator(config=path)
    except (ServiceBusError, ValueError) as error:
        ear.hear_error("an error", error)
        return True
    ear.hear("a repr", repr(emulator))
    return False


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in a value, and the key of each member."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in list(entries):
        yield value, key
        yield from places(member)


def test_a_good_one_is_taken(ear: Ear, tmp_path: Path) -> None:
    assert not told(ear, tmp_path / "Config.json", json.dumps(configuration()))
    ear.check()


def test_every_value_of_a_wrong_type(ear: Ear, tmp_path: Path) -> None:
    refused = 0
    values: list[Any] = [None, 5, [], {}, True, {"PrimaryKey": KEY}]
    for wrong in values:
        for number, _ in enumerate(places(configuration())):
            changed = configuration()
            container, key = list(places(changed))[number]
            container[key] = wrong
            refused += told(ear, tmp_path / "Config.json", json.dumps(changed))
    assert refused > 100
    ear.check()


def test_keys_of_a_wrong_type(ear: Ear, tmp_path: Path) -> None:
    for wrong in ([KEY], {"Value": KEY}, 5, "", None):
        changed = configuration()
        changed["UserConfig"]["Namespaces"][0]["AuthorizationRules"][0]["PrimaryKey"] = wrong
        assert told(ear, tmp_path / "Config.json", json.dumps(changed))
    for wrong_rules in (
        KEY,
        [KEY],
        [[KEY]],
        [{"KeyName": [KEY]}],
        [{**RULE, "Rights": [KEY]}],
        [{**RULE, "Rights": KEY}],
    ):
        changed = configuration()
        changed["UserConfig"]["Namespaces"][0]["Queues"][0]["Properties"]["AuthorizationRules"] = wrong_rules
        assert told(ear, tmp_path / "Config.json", json.dumps(changed))
    ear.check()


def test_slips_of_the_hand(ear: Ear, tmp_path: Path) -> None:
    random, text, refused = Random("damaged configurations"), json.dumps(configuration(), indent=1), 0
    for _ in range(1_500):
        damaged = text
        for _ in range(random.randint(1, 3)):
            at = random.randrange(len(damaged))
            if random.random() < 0.5:
                damaged = damaged[:at] + damaged[at + 1 :]
            else:
                damaged = damaged[:at] + random.choice("\"'{}[],:\\\n x") + damaged[at:]
        refused += told(ear, tmp_path / "Config.json", damaged)
    assert refused > 500
    ear.check()


@pytest.mark.parametrize(
    "text",
    [
        connection_string(),
        connection_string(more=";Extra=1"),
        connection_string(more=";EntityPath="),
        connection_string().replace(";", ","),
        connection_string().replace("SharedAccessKey=", "SharedAccessKey:"),
        connection_string() + ";" + connection_string(),
        connection_string(endpoint=f"sb://user:{KEY}@contoso/"),
        connection_string(endpoint=f"sb://contoso:{KEY}/"),
        connection_string(endpoint=KEY),
        f"memory://{KEY}/contoso",
        f"memory://contoso;SharedAccessKeyName=root;SharedAccessKey={KEY}",
        f"Endpoint=sb://a;SharedAccessSignature=SharedAccessSignature sig={SIGNATURE};UseDevelopmentEmulator={KEY}",
        KEY,
    ],
)
def test_connection_strings(ear: Ear, text: str) -> None:
    try:
        ear.hear("a repr", repr(parse_connection_string(text)))
    except ServiceBusError as error:
        ear.hear_error("an error", error)
    ear.check()
