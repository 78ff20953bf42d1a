from __future__ import annotations

import os
import socket

import pytest

from sbclient.worker.systemd import ServiceManager
from tests.worker.scene import Listener


def test_each_message_is_a_datagram_with_the_words_of_the_protocol(listener: Listener) -> None:
    manager = ServiceManager({"NOTIFY_SOCKET": listener.path})
    manager.notify("READY=1", "running")
    manager.notify("WATCHDOG=1", "drained 5")
    manager.notify("STOPPING=1", "stopping")
    assert listener.heard() == [
        {"READY": "1", "STATUS": "running"},
        {"WATCHDOG": "1", "STATUS": "drained 5"},
        {"STOPPING": "1", "STATUS": "stopping"},
    ]


@pytest.mark.parametrize("end", ["", "@", "@instance@2"])
def test_an_abstract_address_is_understood(end: str) -> None:
    name = f"sbclient-test-{os.getpid()}{end}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(f"\0{name}")
        ServiceManager({"NOTIFY_SOCKET": f"@{name}"}).notify("READY=1", "running")
        assert heard.recv(100) == b"READY=1\nSTATUS=running"


@pytest.mark.parametrize("address", ["", "/nowhere/notify", "@no-listener"])
def test_without_a_listener_nothing_fails(address: str) -> None:
    ServiceManager({"NOTIFY_SOCKET": address} if address else {}).notify("READY=1", "running")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_watchdog_is_notified_at_twice_the_required_rate(environment: dict[str, str], expected: float | None) -> None:
    assert ServiceManager({"NOTIFY_SOCKET": "/nowhere", **environment}).watchdog_s == expected
