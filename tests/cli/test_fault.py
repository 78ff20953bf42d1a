"""`sbclient fault` on an emulator in another thread."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import Result

from sbclient.emulator.control.fault_json import KINDS
from sbclient.emulator.emulator import Emulator
from sbclient.emulator.sas import ROOT_KEY
from sbclient.testing import served
from tests.cli.test_app import examples
from tests.cli.test_commands_page import shape, shapes_in
from tests.commands import call


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    with served("contoso", "contoso-backup", http_port=0) as found:
        found.create_queue("orders", enable_partitioning=True)
        yield found


@pytest.fixture(autouse=True)
def _no_faults(emulator: Emulator) -> Iterator[None]:
    yield
    for name in emulator.namespaces:
        emulator.heal(namespace=name)


def fault(emulator: Emulator, *arguments: str, status: int = 0) -> Result:
    return call("fault", *arguments, "--primary", emulator.connection_string, status=status)


def listed(emulator: Emulator, *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in fault(emulator, "list", "--json", *arguments).stdout.splitlines()]


def test_fault_is_added_listed_and_removed(emulator: Emulator) -> None:
    line = fault(emulator, "add", "down", "--entity", "orders", "--fragment", "3", "--fragment", "4").stdout
    number = line.split()[0]
    assert line == f"{number}  down  entity=orders  fragments=3,4\n"
    assert listed(emulator) == [{"id": int(number), "kind": "down", "entity": "orders", "fragments": [3, 4]}]
    other = json.loads(fault(emulator, "add", "quota", "--operation", "send", "--count", "5", "--json").stdout)
    assert (other["kind"], other["operations"], other["count"]) == ("quota", ["send"], 5)
    assert fault(emulator, "remove", number).stdout.split()[:2] == [str(other["id"]), "quota"]
    assert fault(emulator, "remove", "--all").stdout == ""
    assert listed(emulator) == []


def test_json_has_the_documented_shape(emulator: Emulator) -> None:
    given = ["--entity", "orders", "--fragment", "3", "--duration", "30", "--json"]
    assert shape(json.loads(fault(emulator, "add", "down", *given).stdout)) == shape(shapes_in("fault")[0])


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_can_be_added(emulator: Emulator, kind: str) -> None:
    extras = {"error": ["--error", "ServiceBusServerBusyError"], "slow": ["--latency", "0.1"]}.get(kind, [])
    port = ["--http-port", str(emulator.http_port)]
    fault(emulator, "add", kind, "--duration", "60", "--probability", "0.5", "--seed", "7", *extras, *port)
    assert [each["kind"] for each in listed(emulator, *port)] == [kind]


@pytest.mark.parametrize("command", ["add", "list", "remove"])
def test_each_example_of_the_help_runs(emulator: Emulator, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --http-port alone, or else with the connection string."""
    monkeypatch.delenv("SERVICEBUS_CONNECTION_STRING", raising=False)
    for example in examples("fault", command):
        number = fault(emulator, "add", "down").stdout.split()[0]
        arguments = shlex.split(example)[1:]
        if "--http-port" in arguments:
            arguments[arguments.index("5300")] = str(emulator.http_port)
        else:
            arguments += ["--primary", emulator.connection_string]
        call(*[number if word == "3" and command == "remove" else word for word in arguments])
        emulator.heal()


def test_the_key_of_an_emulator_may_be_in_the_environment(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    port = ["--http-port", str(emulator.http_port)]
    monkeypatch.delenv("SERVICEBUS_CONNECTION_STRING", raising=False)
    assert "give --primary" in call("fault", "list", status=2).stderr
    monkeypatch.setenv("SBCLIENT_EMULATOR_KEY", "another key")
    call("fault", "list", *port, status=4)
    monkeypatch.setenv("SBCLIENT_EMULATOR_KEY", ROOT_KEY)
    call("fault", "list", *port)


def test_unknown_entity_is_a_warning(emulator: Emulator) -> None:
    result = fault(emulator, "add", "busy", "--entity", "ordres")
    assert result.stderr == "warning: ordres does not exist; the fault takes effect when it is created\n"
    assert [each["entity"] for each in listed(emulator)] == ["ordres"]


def test_other_namespace_is_reached_by_the_http_port(emulator: Emulator) -> None:
    where = ["--http-port", str(emulator.http_port), "--namespace", "contoso-backup"]
    fault(emulator, "add", "refuse", *where)
    assert [each["kind"] for each in listed(emulator, *where)] == ["refuse"]
    assert listed(emulator) == []


@pytest.mark.parametrize("duration", ["15s", "PT15S", "15", "0.25m"])
def test_duration_has_a_unit_or_is_in_seconds(emulator: Emulator, duration: str) -> None:
    added = json.loads(fault(emulator, "add", "down", "--duration", duration, "--json").stdout)
    assert 14 < added["duration_s"] <= 15
    slow = json.loads(fault(emulator, "add", "slow", "--latency", "200ms", "--json").stdout)
    assert slow["latency_s"] == 0.2


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["add", "dwon"], 2, "kind of a fault is 'dwon': did you mean down?"),
        (["add", "error", "--error", "ServerBusyError"], 2, "did you mean ServiceBusServerBusyError?"),
        (["add", "down", "--operation", "sendd"], 2, "operations has 'sendd': did you mean send?"),
        (["down"], 2, "No such command 'down'. Did you mean 'add down'?"),
        (["add", "down", "--latency", "1"], 2, "a fault of kind down has no 'latency_s'"),
        (["add", "down", "--duration", "soon"], 2, "'soon' is not a duration"),
        (["remove"], 2, "give the number of a fault, or --all"),
        (["remove", "99"], 5, "fault '99' does not exist"),
    ],
)
def test_mistake_is_one_sentence(emulator: Emulator, arguments: list[str], status: int, text: str) -> None:
    assert text in fault(emulator, *arguments, status=status).stderr


def test_refused_connection_names_the_http_port(emulator: Emulator) -> None:
    fault(emulator, "add", "refuse")
    assert "add --http-port with its HTTP port" in fault(emulator, "list", status=3).stderr
    fault(emulator, "remove", "--all", "--http-port", str(emulator.http_port))


@pytest.mark.parametrize(
    "namespace",
    ["memory://x", "Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=k"],
)
def test_only_emulators_have_faults(namespace: str) -> None:
    assert "only an emulator can do this" in call("fault", "list", "--primary", namespace, status=2).stderr
