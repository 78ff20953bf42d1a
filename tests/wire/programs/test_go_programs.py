"""Programs in Go, which fetches them. They use only TLS."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from sbclient.emulator import Emulator
from sbclient.emulator.sas import ROOT_KEY_NAME
from tests.stage.serving import ServingThread, serving
from tests.wire.programs import build_go, check_lines, run_program

GO = Path(__file__).parent / "go"


def _checked(program: Path, checks: tuple[str, ...], emulator: Emulator, thread: ServingThread) -> None:
    address = f"sb://localhost:{emulator.ports['contoso']}/"
    string = f"Endpoint={address};SharedAccessKeyName={ROOT_KEY_NAME};SharedAccessKey={emulator.root_key()}"
    trusted = {"SSL_CERT_FILE": str(emulator.certificate_path)}
    check_lines(run_program([str(program), string], emulator, thread, trusted), checks)


def test_dapr_retries_and_leaves_dead_letters(thread: ServingThread) -> None:
    program = build_go(GO / "dapr", for_what="Dapr's components")
    with serving(thread) as emulator:
        _checked(program, ("queue", "topic"), emulator, thread)
        entities = emulator.context().host.namespace.directory.all()
        stored = {queue.path: sum(map(len, queue.fragments)) for entity in entities for queue in entity.queues()}
        assert {path: count for path, count in stored.items() if count} == {
            "events/Subscriptions/worker/$DeadLetterQueue": 2
        }


@pytest.mark.timeout(1_200)
def test_keda_scales_by_active_messages(thread: ServingThread) -> None:
    program = build_go(GO / "keda", for_what="KEDA")
    counted = ("queue", "inactive", "empty", "subscription", "sum", "max", "subscriptions")
    checks = (*counted, "missing queue", "missing subscription", "missing topic")
    with serving(thread) as emulator:
        for queue in ("orders", "orders-eu", "empty"):
            emulator.create_queue(queue)
        emulator.create_topic("events")
        for subscription in ("worker", "watcher"):
            emulator.create_subscription("events", subscription)
        client = ServiceBusClient.from_connection_string(emulator.connection_string)
        with (
            client,
            client.get_queue_sender("orders") as orders,
            client.get_queue_sender("orders-eu") as europe,
            client.get_topic_sender("events") as events,
            client.get_queue_receiver("orders") as receiver,
        ):
            orders.send_messages([ServiceBusMessage("dead") for _ in range(2)])
            for _, message in zip(range(2), receiver, strict=False):
                receiver.dead_letter_message(message)
            orders.schedule_messages(ServiceBusMessage("later"), datetime.now(UTC) + timedelta(days=1))
            for sender, count in ((orders, 7), (europe, 3), (events, 7)):
                sender.send_messages([ServiceBusMessage("work") for _ in range(count)])
        _checked(program, checks, emulator, thread)
