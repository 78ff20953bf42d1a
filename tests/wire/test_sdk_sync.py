"""azure-servicebus, its blocking client, unmodified: what its threads do differently from the asyncio one."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    AutoLockRenewer,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceiveMode,
    ServiceBusReceiver,
    ServiceBusSender,
    ServiceBusSubQueue,
)
from azure.servicebus.exceptions import (
    OperationTimeoutError,
    SessionCannotBeLockedError,
)

from sbclient.rules.shared_access_signature import sign
from tests.stage.serving import ServingThread
from tests.wire.checks import Checks, Names, Outcomes
from tests.wire.programs import MODES
from tests.wire.serving import ServedNamespace, seconds

check = Checks()
names = Names("sync")


@pytest.fixture(scope="module", params=MODES)
def site(thread: ServingThread, request: pytest.FixtureRequest) -> Iterator[Site]:
    if request.param == "websocket":
        pytest.importorskip("websocket", reason="websocket-client is not installed: pip install websocket-client")
    namespace = ServedNamespace(thread, mode=request.param)
    yield Site(namespace)
    namespace.close()


@pytest.fixture(scope="module")
def outcomes(site: Site) -> Outcomes:
    return check.run_threads(site)


class Site:
    """What a check is given."""

    def __init__(self, namespace: ServedNamespace) -> None:
        self.namespace = namespace

    def client(self, **options: Any) -> ServiceBusClient:
        return self.client_of(self.namespace.connection_string, **options)

    def client_of(self, connection_string: str, **options: Any) -> ServiceBusClient:
        options |= self.namespace.client_options
        return ServiceBusClient.from_connection_string(connection_string, retry_total=0, **options)

    @contextmanager
    def queue(self, **description: Any) -> Iterator[tuple[str, ServiceBusSender, ServiceBusReceiver]]:
        path = self.namespace.queue(names.new(), **description)
        client = self.client()
        with client, client.get_queue_sender(path) as sender, client.get_queue_receiver(path) as receiver:
            yield path, sender, receiver


def several(receiver: ServiceBusReceiver, count: int) -> list[Any]:
    got: list[Any] = []
    while len(got) < count:
        batch = receiver.receive_messages(max_message_count=count - len(got), max_wait_time=10)
        assert batch, f"{len(got)} of {count} came"
        got += batch
    return got


@check
def check_every_settlement(site: Site) -> None:
    with site.queue() as (path, sender, receiver):
        sender.send_messages([ServiceBusMessage(str(number)) for number in range(4)])
        messages = several(receiver, 4)
        receiver.complete_message(messages[0])
        receiver.abandon_message(messages[1])
        receiver.defer_message(messages[2])
        receiver.dead_letter_message(messages[3], reason="r", error_description="d")
        (again,) = several(receiver, 1)
        assert (str(again), again.delivery_count) == ("1", 1)
        receiver.complete_message(again)
        (deferred,) = receiver.receive_deferred_messages(messages[2].sequence_number)
        receiver.complete_message(deferred)
        client = site.client()
        with client, client.get_queue_receiver(path, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as dead:
            (message,) = several(dead, 1)
            assert (message.dead_letter_reason, message.dead_letter_error_description) == ("r", "d")
            dead.complete_message(message)
        assert site.namespace.count(path) == 0


@check
def check_batches_peek_and_schedule(site: Site) -> None:
    with site.queue(enable_partitioning=True) as (_, sender, receiver):
        batch = sender.create_message_batch()
        for number in range(5):
            batch.add_message(ServiceBusMessage(str(number), partition_key="k"))
        sender.send_messages(batch)
        (peeked,) = receiver.peek_messages(max_message_count=1)
        assert str(peeked) == "0"
        later = datetime.now(UTC) + timedelta(hours=1)
        first, _ = sender.schedule_messages([ServiceBusMessage("6", partition_key="k") for _ in range(2)], later)
        sender.cancel_scheduled_messages(first)
        soon = datetime.now(UTC) + timedelta(seconds=1)
        sender.schedule_messages(ServiceBusMessage("5", partition_key="k"), soon)
        assert [str(message) for message in several(receiver, 6)] == list("012345")


@check
def check_receive_and_delete_by_iterator(site: Site) -> None:
    with site.queue() as (path, sender, _):
        sender.send_messages([ServiceBusMessage(str(number)) for number in range(5)])
        with site.client() as client:
            mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
            with client.get_queue_receiver(path, receive_mode=mode, max_wait_time=2) as receiver:
                assert [str(message) for message in receiver] == list("01234")
        assert site.namespace.count(path) == 0


@check
def check_prefetched_messages_are_released_at_close(site: Site) -> None:
    with site.queue() as (path, sender, _):
        sender.send_messages([ServiceBusMessage(str(number)) for number in range(20)])
        with site.client() as client:
            with client.get_queue_receiver(path, prefetch_count=30) as prefetching:
                (message,) = prefetching.receive_messages(max_message_count=1, max_wait_time=10)
                prefetching.complete_message(message)
            with client.get_queue_receiver(path) as receiver:
                assert {message.delivery_count for message in several(receiver, 19)} == {0}


@check
def check_sessions_with_state_and_renewal(site: Site) -> None:
    path = site.namespace.queue(names.new(), requires_session=True, lock_duration=seconds(5))
    with site.client() as client, client.get_queue_sender(path) as sender, AutoLockRenewer() as renewer:
        sender.send_messages([ServiceBusMessage(str(number), session_id="a") for number in range(3)])
        with client.get_queue_receiver(path, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=5) as receiver:
            assert receiver.session.session_id == "a"
            renewer.register(receiver, receiver.session, max_lock_renewal_duration=30)
            receiver.session.set_state(b"state")
            with pytest.raises(SessionCannotBeLockedError), client.get_queue_receiver(path, session_id="a"):
                pass
            time.sleep(7)
            assert receiver.session.get_state() == b"state"
            for message in several(receiver, 3):
                receiver.complete_message(message)
        waiting = client.get_queue_receiver(path, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=2)
        with pytest.raises(OperationTimeoutError), waiting:
            pass
    assert site.namespace.count(path) == 0


@check
def check_a_token_in_the_connection_string_opens_if_it_is_good(site: Site) -> None:
    path = site.namespace.queue(names.new())
    host, emulator = site.namespace.endpoint, site.namespace.connection_string.partition(";UseDevelopmentEmulator")
    good = sign(f"{host}/{path}", "RootManageSharedAccessKey", "SAS_KEY_VALUE", time.time() + 60)

    def send_with(token: str) -> None:
        client = site.client_of(f"Endpoint={host};SharedAccessSignature={token}{''.join(emulator[1:])}")
        with client, client.get_queue_sender(path) as sender:
            sender.send_messages(ServiceBusMessage("x"))

    send_with(good)
    with pytest.raises(site.namespace.unauthenticated):
        send_with(good.replace("sig=", "sig=A"))
    assert site.namespace.count(path) == 1


class _Credential:
    """A token credential whose tokens are good here only with `--auth jwt-any`."""

    def get_token(self, *_: str, **__: Any) -> AccessToken:
        return AccessToken("eyJhbGciOiJub25lIn0.eyJzdWIiOiJ4In0.x", int(time.time()) + 3600)


@check
def check_a_web_token_is_refused_unless_it_was_asked_for(site: Site) -> None:
    path = site.namespace.queue(names.new())
    name = f"127.0.0.1:{site.namespace.port}"
    client = ServiceBusClient(
        name, _Credential(), use_tls=site.namespace.mode != "plain", retry_total=0, **site.namespace.client_options
    )
    with client, pytest.raises(site.namespace.unauthenticated), client.get_queue_sender(path) as sender:
        sender.send_messages(ServiceBusMessage("x"))


@check
def check_a_long_wait_is_kept_alive_and_served(site: Site) -> None:
    with site.queue() as (_, sender, receiver):
        assert receiver.receive_messages(max_wait_time=8) == []
        sender.send_messages(ServiceBusMessage("x"))
        (message,) = several(receiver, 1)
        assert message.delivery_count == 0
        receiver.complete_message(message)


@pytest.mark.parametrize("name", check.names)
def test_sdk_sync(name: str, outcomes: Outcomes) -> None:
    error = outcomes[name]
    if error is not None:
        raise error


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the client does not close what was reset
def test_the_same_sender_and_receiver_work_after_an_outage(site: Site) -> None:
    path = site.namespace.queue(names.new())
    client = ServiceBusClient.from_connection_string(site.namespace.connection_string, **site.namespace.client_options)
    with client, client.get_queue_sender(path) as sender, client.get_queue_receiver(path) as receiver:
        sender.send_messages(ServiceBusMessage("before"))
        receiver.complete_message(several(receiver, 1)[0])
        site.namespace.reset_connections()
        sender.send_messages(ServiceBusMessage("after"))
        (message,) = several(receiver, 1)
        assert str(message) == "after"
        receiver.complete_message(message)
    assert site.namespace.count(path) == 0
    del client, sender, receiver
    gc.collect()
