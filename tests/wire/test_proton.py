"""python-qpid-proton, a second AMQP stack: sending, every outcome, sessions, requests and local transactions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from sbclient import PairedNamespaceOptions, ServiceBusClient
from sbclient.emulator.faults import WireFault, WireFaultKind
from sbclient.transport.memory.transport import drop_memory_host
from tests.limit import HANG_S
from tests.original_client import BACKLOG, comparable, healthy
from tests.stage.serving import ServingThread
from tests.wire.checks import Names
from tests.wire.programs import MODES
from tests.wire.serving import ServedNamespace

_MISSING = "python-qpid-proton is not installed: pip install python-qpid-proton"
proton: Any = pytest.importorskip("proton", reason=_MISSING)
handlers: Any = pytest.importorskip("proton.handlers", reason=_MISSING)
reactor: Any = pytest.importorskip("proton.reactor", reason=_MISSING)
utils: Any = pytest.importorskip("proton.utils", reason=_MISSING)

Message, symbol = proton.Message, proton.symbol
LinkDetached = utils.LinkDetached

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:proton")

names = Names("proton")


@pytest.fixture(scope="module", params=MODES)
def namespace(thread: ServingThread, request: pytest.FixtureRequest) -> Iterator[ServedNamespace]:
    if request.param == "websocket":
        pytest.skip("qpid-proton has no WebSockets")
    served = ServedNamespace(thread, mode=request.param)
    yield served
    served.close()


def url(namespace: ServedNamespace, key: str = "SAS_KEY_VALUE") -> str:
    scheme = "amqp" if namespace.mode == "plain" else "amqps"
    return f"{scheme}://RootManageSharedAccessKey:{key}@127.0.0.1:{namespace.port}"


def options(namespace: ServedNamespace) -> dict[str, Any]:
    """Further arguments of a connection."""
    if namespace.mode == "plain":
        return {"allowed_mechs": "PLAIN"}
    domain = proton.SSLDomain(proton.SSLDomain.MODE_CLIENT)
    domain.set_trusted_ca_db(namespace.certificate_path)
    domain.set_peer_authentication(proton.SSLDomain.VERIFY_PEER)
    return {"allowed_mechs": "PLAIN", "ssl_domain": domain}


@contextmanager
def connected(namespace: ServedNamespace, key: str = "SAS_KEY_VALUE") -> Iterator[Any]:
    connection = utils.BlockingConnection(url(namespace, key), timeout=HANG_S, **options(namespace))
    try:
        yield connection
    finally:
        connection.close()


def test_send_receive_and_accept(namespace: ServedNamespace) -> None:
    path = namespace.queue(names.new())
    with connected(namespace) as connection:
        sent = Message(body={"k": [1, "a"]}, id="m", subject="s", properties={"p": proton.ubyte(7)}, group_id="g")
        connection.create_sender(path).send(sent)
        receiver = connection.create_receiver(path, credit=1)
        message = receiver.receive(timeout=HANG_S)
        assert message.body == {"k": [1, "a"]}
        assert (message.id, message.subject, message.group_id) == ("m", "s", "g")
        assert message.properties == {"p": 7}
        assert type(message.properties["p"]) is proton.ubyte
        assert message.annotations["x-opt-sequence-number"] == 1
        receiver.accept()
    assert namespace.count(path) == 0


def test_diverted_messages_are_those_of_the_original_client(namespace: ServedNamespace) -> None:
    if namespace.mode != "plain":
        pytest.skip("the connection of the paired client is not what this test is about")

    async def divert() -> str:
        secondary = namespace.connection_string
        options = PairedNamespaceOptions(backlog_queue_count=1)
        async with ServiceBusClient.from_connection_string(
            "memory://contoso", secondary=secondary, options=options, transport="amqp"
        ) as client:
            for path in {healthy(each).path for each in BACKLOG}:
                await client.administration.create_queue(path)
                client.pair.force_failover(path)
            for each in BACKLOG:
                await client.get_queue_sender(healthy(each).path).send_messages(healthy(each).message.decoded())
            (queue,) = client.pair.status().backlog_queues
            return queue

    backlog = asyncio.run(divert())
    drop_memory_host("contoso")
    with connected(namespace) as connection:
        receiver = connection.create_receiver(backlog, credit=len(BACKLOG))
        for each in BACKLOG:
            ours, theirs = receiver.receive(timeout=HANG_S), Message()
            receiver.accept()
            theirs.decode(each.payload)
            ours, theirs = comparable(ours.encode()), comparable(theirs.encode())
            for section in ("properties", "application-properties", "data"):
                assert ours[section] == theirs[section], each


def test_reject_dead_letters_and_release_returns(namespace: ServedNamespace) -> None:
    path = namespace.queue(names.new())
    with connected(namespace) as connection:
        sender = connection.create_sender(path)
        sender.send(Message(body="dead"))
        receiver = connection.create_receiver(path, credit=1)
        receiver.receive(timeout=HANG_S)
        receiver.reject()
        sender.send(Message(body="back"))
        receiver.receive(timeout=HANG_S)
        receiver.release(delivered=False)
        assert receiver.receive(timeout=HANG_S).delivery_count == 0
        receiver.release(delivered=True)
        assert receiver.receive(timeout=HANG_S).delivery_count == 1
        receiver.accept()
        dead = connection.create_receiver(f"{path}/$DeadLetterQueue", credit=1)
        assert dead.receive(timeout=HANG_S).body == "dead"
        dead.accept()


def test_a_session_by_its_filter(namespace: ServedNamespace) -> None:
    path = namespace.queue(names.new(), requires_session=True)
    with connected(namespace) as connection:
        sender = connection.create_sender(path)
        for session in "ab":
            sender.send(Message(body=session, group_id=session))
        chosen = reactor.Filter({symbol("com.microsoft:session-filter"): "b"})
        receiver = connection.create_receiver(path, credit=1, options=chosen)
        assert receiver.receive(timeout=HANG_S).body == "b"
        receiver.accept()
        with pytest.raises(LinkDetached, match="session-cannot-be-locked"):
            connection.create_receiver(path, credit=1, options=chosen, name="another")


def test_rejections_have_conditions(namespace: ServedNamespace) -> None:
    path = namespace.queue(names.new(), requires_session=True)
    with connected(namespace) as connection:
        with pytest.raises(LinkDetached, match="not-found"):
            connection.create_sender("missing")
        with pytest.raises(utils.SendException):
            connection.create_sender(path).send(Message(body="no session"))
        with pytest.raises(LinkDetached, match="not-allowed"):
            connection.create_receiver(path)


def test_a_wrong_key_is_rejected(namespace: ServedNamespace) -> None:
    with pytest.raises(proton.ConnectionException), connected(namespace, "guess"):
        pass


def test_a_request_is_answered(namespace: ServedNamespace) -> None:
    path = namespace.queue(names.new())
    with connected(namespace) as connection:
        connection.create_sender(path).send(Message(body="x"))
        replies = connection.create_receiver(f"{path}/$management", credit=1, name=names.new())
        request = Message(
            id="r-1",
            reply_to="wherever",
            properties={"operation": "com.microsoft:peek-message"},
            body={"from-sequence-number": proton.ulong(0), "message-count": proton.int32(1)},
        )
        connection.create_sender(f"{path}/$management").send(request)
        reply = replies.receive(timeout=HANG_S)
        assert reply.correlation_id == "r-1"
        assert reply.properties["statusCode"] == 200
        assert len(reply.body["messages"]) == 1


def ask(connection: Any, path: str, operation: str, body: Any) -> Any:
    """Send one request to the management node of an entity; returns the reply."""
    replies = connection.create_receiver(f"{path}/$management", credit=1)
    request = Message(id=operation, reply_to="here", properties={"operation": f"com.microsoft:{operation}"}, body=body)
    connection.create_sender(f"{path}/$management", name=names.new()).send(request)
    reply = replies.receive(timeout=HANG_S)
    assert reply.correlation_id == operation
    replies.close()
    return reply


def longs(*values: int) -> Any:
    return proton.Array(proton.UNDESCRIBED, proton.Data.LONG, *values)


def uuids(*values: Any) -> Any:
    return proton.Array(proton.UNDESCRIBED, proton.Data.UUID, *values)


def test_schedule_peek_and_cancel(namespace: ServedNamespace) -> None:
    path = namespace.queue(names.new())
    at = proton.timestamp(int((time.time() + 600) * 1000))
    scheduled = Message(body="later", id="m", annotations={symbol("x-opt-scheduled-enqueue-time"): at})
    with connected(namespace) as connection:
        reply = ask(
            connection, path, "schedule-message", {"messages": [{"message-id": "m", "message": scheduled.encode()}]}
        )
        (number,) = reply.body["sequence-numbers"].elements
        peek = {"from-sequence-number": proton.ulong(0), "message-count": proton.int32(1)}
        reply = ask(connection, path, "peek-message", peek)
        peeked = Message()
        peeked.decode(bytes(reply.body["messages"][0]["message"]))
        assert (peeked.body, peeked.annotations["x-opt-message-state"]) == ("later", 2)
        reply = ask(connection, path, "cancel-scheduled-message", {"sequence-numbers": longs(number)})
        assert reply.properties["statusCode"] == 200
    assert namespace.count(path) == 0


def process_until(connection: Any, condition: Callable[[], bool]) -> None:
    """Process events until the condition holds. `connection.wait` would block until the server sends something."""
    ends_at = time.monotonic() + HANG_S
    connection.container.timeout = 0.05
    while not condition():
        assert time.monotonic() < ends_at
        connection.container.process()


def test_defer_receive_by_number_and_renew_the_lock(namespace: ServedNamespace) -> None:
    path = namespace.queue(names.new())
    with connected(namespace) as connection:
        connection.create_sender(path).send(Message(body="x"))
        receiver = connection.create_receiver(path, credit=1)
        message = receiver.receive(timeout=HANG_S)
        token = message.instructions["x-opt-lock-token"]
        renewed = ask(connection, path, "renew-lock", {"lock-tokens": uuids(token)})
        assert len(renewed.body["expirations"].elements) == 1
        delivery = receiver.fetcher.unsettled[0]
        delivery.local.undeliverable = True
        delivery.local.annotations = {symbol("why"): "later"}
        delivery.update(proton.Disposition.MODIFIED)
        delivery.settle()
        process_until(connection, lambda: namespace.do(lambda: _deferred_count(namespace, path)) == 1)
        number = message.annotations["x-opt-sequence-number"]
        reply = ask(connection, path, "receive-by-sequence-number", {"sequence-numbers": longs(number)})
        deferred = Message()
        deferred.decode(bytes(reply.body["messages"][0]["message"]))
        assert (deferred.body, deferred.properties) == ("x", {"why": "later"})
        done = {"disposition-status": "completed", "lock-tokens": uuids(reply.body["messages"][0]["lock-token"])}
        assert ask(connection, path, "update-disposition", done).properties["statusCode"] == 200
    assert namespace.count(path) == 0


def _deferred_count(namespace: ServedNamespace, path: str) -> int:
    fragments = namespace.host.namespace.queue(path).fragments
    return sum(entry.state == 1 for fragment in fragments for entry in fragment.browse(0, 0))


def test_session_has_a_state(namespace: ServedNamespace) -> None:
    path = namespace.queue(names.new(), requires_session=True)
    with connected(namespace) as connection:
        chosen = reactor.Filter({symbol("com.microsoft:session-filter"): "a"})
        connection.create_receiver(path, credit=1, options=chosen)
        state = {"session-id": "a", "session-state": b"half"}
        assert ask(connection, path, "set-session-state", state).properties["statusCode"] == 200
        reply = ask(connection, path, "get-session-state", {"session-id": "a"})
        assert bytes(reply.body["session-state"]) == b"half"


def test_rules_are_added_listed_and_removed(namespace: ServedNamespace) -> None:
    topic = namespace.topic(names.new(), "s")
    path = f"{topic}/Subscriptions/s"
    rule = {"rule-name": "red", "rule-description": {"sql-filter": {"expression": "colour = 'red'"}}}
    with connected(namespace) as connection:
        assert ask(connection, path, "add-rule", rule).properties["statusCode"] == 200
        everything = {"skip": proton.int32(0), "top": proton.int32(10)}
        assert len(ask(connection, path, "enumerate-rules", everything).body["rules"]) == 2
        assert ask(connection, path, "remove-rule", {"rule-name": "$Default"}).properties["statusCode"] == 200
        assert len(ask(connection, path, "enumerate-rules", everything).body["rules"]) == 1


def test_client_connects_again_after_an_outage(namespace: ServedNamespace) -> None:
    path = namespace.queue(names.new())
    lost = utils.BlockingConnection(url(namespace), timeout=HANG_S, **options(namespace))
    sender = lost.create_sender(path)
    fault = namespace.inject_wire_fault(WireFault(WireFaultKind.RESET))
    with pytest.raises(proton.ProtonException):
        sender.send(Message(body="lost"))
    namespace.do(lambda: namespace.context.wire_faults.heal(fault))
    with connected(namespace) as connection:
        connection.create_sender(path).send(Message(body="after"))
    assert namespace.count(path) >= 1


class Script(handlers.MessagingHandler, handlers.TransactionHandler):  # type: ignore[misc]  # proton has no types
    """Sends and accepts in one transaction, and ends it."""

    def __init__(self, namespace: ServedNamespace, path: str, *, commits: bool) -> None:
        super().__init__(prefetch=0, auto_accept=False)
        self.namespace = namespace
        self.path = path
        self.commits = commits
        self.transaction: Any = None
        self.ended: list[str] = []
        self.accepted: list[Any] = []

    def on_start(self, event: Any) -> None:
        self.container = event.container
        self.connection = event.container.connect(url(self.namespace), reconnect=False, **options(self.namespace))
        self.sender = event.container.create_sender(self.connection, self.path)
        self.receiver = event.container.create_receiver(self.connection, self.path)
        self.container.declare_transaction(self.connection, handler=self, settle_before_discharge=False)
        self.deadline = event.container.schedule(HANG_S, self)

    def on_transaction_declared(self, event: Any) -> None:
        self.transaction = event.transaction
        self.receiver.flow(1)

    def on_message(self, event: Any) -> None:
        assert self.transaction is not None
        self.transaction.accept(event.delivery)
        for number in range(2):
            self.transaction.send(self.sender, Message(body=f"out-{number}"))

    def on_accepted(self, event: Any) -> None:
        if event.sender == self.sender:
            self.accepted.append(event.delivery)
            if len(self.accepted) == 2:
                self._end()

    def on_settled(self, event: Any) -> None:
        if event.sender == self.sender and event.delivery not in self.accepted:
            self.accepted.append(event.delivery)
            if len(self.accepted) == 2:
                self._end()

    def _end(self) -> None:
        assert self.transaction is not None
        if self.commits:
            self.transaction.commit()
        else:
            self.transaction.abort()

    def on_transaction_committed(self, event: Any) -> None:
        self._done("committed")

    def on_transaction_aborted(self, event: Any) -> None:
        self._done("aborted")

    def on_transaction_commit_failed(self, event: Any) -> None:
        self._done("commit failed")

    def on_transaction_declare_failed(self, event: Any) -> None:
        self._done("declare failed")

    def on_timer_task(self, event: Any) -> None:
        self.ended.append("too late")
        self.connection.close()

    def _done(self, how: str) -> None:
        self.ended.append(how)
        self.deadline.cancel()
        self.connection.close()


def run(script: Script) -> None:
    reactor.Container(script).run()


@pytest.mark.parametrize(
    ("commits", "ended", "left"), [(True, ["committed"], ["out-0", "out-1"]), (False, ["aborted"], ["in"])]
)
def test_a_local_transaction_over_a_receive_and_two_sends(
    namespace: ServedNamespace, commits: bool, ended: list[str], left: list[str]
) -> None:
    path = namespace.queue(names.new())
    with connected(namespace) as connection:
        connection.create_sender(path).send(Message(body="in"))
    script = Script(namespace, path, commits=commits)
    run(script)
    assert script.ended == ended
    assert namespace.count(path) == len(left)
