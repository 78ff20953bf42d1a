"""No error about a damaged configuration, and no repr, contains a key of the configuration."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from sbclient.client.client import ServiceBusClient
from sbclient.emulator import Emulator
from sbclient.errors import ServiceBusError
from sbclient.rules.connection_string import parse_connection_string
from tests.secrets.canaries import KEY, SECOND_KEY, SIGNATURE, connection_string
from tests.secrets.output_capture import OutputCapture, capture_output
from tests.secrets.reachable import reprs_of

RULE = {"KeyName": "app", "Rights": ["Send", "Listen"], "PrimaryKey": KEY, "SecondaryKey": SECOND_KEY}


def configuration() -> Any:
    queue = {"Name": "orders", "Properties": {"LockDuration": "PT1M", "AuthorizationRules": [RULE]}}
    topic = {"Name": "prices", "Properties": {"AuthorizationRules": [RULE]}, "Subscriptions": [{"Name": "eu"}]}
    namespace = {"Name": "contoso", "AuthorizationRules": [RULE], "Queues": [queue], "Topics": [topic]}
    return json.loads(json.dumps({"UserConfig": {"Namespaces": [namespace], "Logging": {"Type": "File"}}}))


@pytest.fixture
def capture() -> Iterator[OutputCapture]:
    with capture_output() as capture:
        yield capture


def is_rejected(capture: OutputCapture, path: Path, text: str) -> bool:
    """Whether a configuration is rejected; capture the error or the repr."""
    path.write_text(text)
    try:
        emulator = Emulator(config=path)
    except (ServiceBusError, ValueError) as error:
        capture.add_error("an error", error)
        return True
    capture.add("a repr", repr(emulator))
    return False


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every container in a value with the key of each member."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in list(entries):
        yield value, key
        yield from places(member)


def test_repr_of_a_valid_configuration_has_no_secret(capture: OutputCapture, tmp_path: Path) -> None:
    assert not is_rejected(capture, tmp_path / "Config.json", json.dumps(configuration()))
    capture.check()


def test_errors_about_values_of_wrong_types_have_no_secret(capture: OutputCapture, tmp_path: Path) -> None:
    refused = 0
    values: list[Any] = [None, 5, [], {}, True, {"PrimaryKey": KEY}]
    for wrong in values:
        for number, _ in enumerate(places(configuration())):
            changed = configuration()
            container, key = list(places(changed))[number]
            container[key] = wrong
            refused += is_rejected(capture, tmp_path / "Config.json", json.dumps(changed))
    assert refused > 100
    capture.check()


def test_errors_about_keys_of_wrong_types_have_no_secret(capture: OutputCapture, tmp_path: Path) -> None:
    for wrong in ([KEY], {"Value": KEY}, 5, "", None):
        changed = configuration()
        changed["UserConfig"]["Namespaces"][0]["AuthorizationRules"][0]["PrimaryKey"] = wrong
        assert is_rejected(capture, tmp_path / "Config.json", json.dumps(changed))
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
        assert is_rejected(capture, tmp_path / "Config.json", json.dumps(changed))
    capture.check()


def test_errors_about_damaged_files_have_no_secret(capture: OutputCapture, tmp_path: Path) -> None:
    random, text, refused = Random("damaged configurations"), json.dumps(configuration(), indent=1), 0
    for _ in range(1_500):
        damaged = text
        for _ in range(random.randint(1, 3)):
            at = random.randrange(len(damaged))
            if random.random() < 0.5:
                damaged = damaged[:at] + damaged[at + 1 :]
            else:
                damaged = damaged[:at] + random.choice("\"'{}[],:\\\n x") + damaged[at:]
        refused += is_rejected(capture, tmp_path / "Config.json", damaged)
    assert refused > 500
    capture.check()


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
def test_errors_and_reprs_of_connection_strings_have_no_secret(capture: OutputCapture, text: str) -> None:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            capture.add("a repr", repr(parse_connection_string(text)))
        except ServiceBusError as error:
            capture.add_error("an error", error)
    capture.add("warnings", "".join(str(each.message) for each in warned))
    capture.check()


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
            text = text.replace(random.choice(("Endpoint", "sb://", "SharedAccessKeyName", "Root", ".")), "", 1)
    return text


@pytest.mark.parametrize("proof", [f"SharedAccessKey={KEY}", f"SharedAccessSignature=sr=sb&sig={SIGNATURE}&skn=Root"])
def test_errors_and_reprs_of_damaged_connection_strings_have_no_secret(proof: str) -> None:
    endpoint, name, _ = connection_string().split(";")
    parts = (endpoint, name, proof, "EntityPath=orders", "UseDevelopmentEmulator=true")
    random, refused = Random("damaged connection strings"), 0
    for _ in range(4_000):
        text, capture = damaged(random, parts), OutputCapture()
        try:
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                parsed = parse_connection_string(text)
            capture.add("warnings", "".join(str(each.message) for each in warned))
        except ServiceBusError as error:
            capture.add_error("an error", error)
            refused += 1
        else:
            shown = replace(parsed, entity_path=None)  # it is a path of the application
            capture.add("a repr", f"{shown!r} {shown} {shown.namespace}")
        assert not [entry for entry in capture.entries if "uw5vzqkt" in entry[1].casefold()], text
    assert refused > 1_000


async def test_reprs_of_a_client_have_no_key(capture: OutputCapture) -> None:
    client = ServiceBusClient.from_connection_string(connection_string())
    for where, text in reprs_of([client, client.get_queue_sender("q"), client.get_queue_receiver("q")]):
        capture.add(where, text)
    capture.add("the administration", repr(client.administration))
    await client.close()
    capture.check(at_least=5)
