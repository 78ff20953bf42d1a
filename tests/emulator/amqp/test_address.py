"""What the addresses of links lead to."""

from __future__ import annotations

import pytest

from sbclient.amqp import WireError
from sbclient.amqp.servicebus import CBS, MANAGEMENT
from sbclient.emulator.amqp.address import (
    MAX_ADDRESS_LENGTH,
    MAX_PATH_LENGTH,
    Node,
    entity_path_of,
    node_of,
)
from sbclient.rules.entity_path import subscription_path, transfer_dead_letter_path


@pytest.mark.parametrize(
    ("address", "node"),
    [
        ("q", Node("q")),
        ("/q", Node("q")),
        ("amqps://127.0.0.1:5672/q", Node("q")),
        ("amqps://h/a/b/c", Node("a/b/c")),
        ("sb://h", Node("")),
        ("sb://h/", Node("")),
        ("amqps://h/t/Subscriptions/s/$DeadLetterQueue", Node("t/Subscriptions/s/$DeadLetterQueue")),
        ("$cbs", Node("", CBS)),
        ("amqps://h/$CBS", Node("", CBS)),
        ("q/$management", Node("q", MANAGEMENT)),
        ("amqps://h/t/Subscriptions/s/$Management", Node("t/Subscriptions/s", MANAGEMENT)),
        ("$management", Node("", MANAGEMENT)),
        ("my$management", Node("my$management")),
        ("q%2Fr", Node("q/r")),
        ("amqps://h/q?x=1", Node("q")),
    ],
)
def test_an_address_selects_a_node(address: str, node: Node) -> None:
    assert node_of(address) == node


LONGEST = subscription_path("x" * 260, "s" * 50)


def test_path_of_the_greatest_length_is_accepted() -> None:
    path = transfer_dead_letter_path(LONGEST)
    assert node_of(f"amqps://{'h' * 255}:65535/{path}/$management") == Node(path, MANAGEMENT)


@pytest.mark.parametrize("address", [None, 5, b"q", "x" * (MAX_ADDRESS_LENGTH + 1), "x" * (MAX_PATH_LENGTH + 1)])
def test_an_invalid_address_is_rejected(address: object) -> None:
    with pytest.raises(WireError) as caught:
        node_of(address)
    assert caught.value.error.condition == "amqp:invalid-field"


def test_the_path_of_an_address_has_no_slashes_around_it() -> None:
    assert entity_path_of("amqps://h:1//q//") == "q"
