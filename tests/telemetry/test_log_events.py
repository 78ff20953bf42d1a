"""What is logged and kept as events: transitions with their facts, on the standard logger `sbclient`."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from typing import Any

import pytest
import structlog

from sbclient import clock
from sbclient.client.client import ServiceBusClient
from sbclient.errors import ServiceBusError
from sbclient.message import ServiceBusMessage
from sbclient.pairing.state import EVENTS_KEPT
from sbclient.telemetry.log import get_logger, sentence
from sbclient.testing import Fault, FaultKind, MemoryPair
from tests.client.scene import AT_ONCE, BACKLOG, QUEUE, options


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [vars(record)["event_name"] for record in caplog.records if record.name.startswith("sbclient")]


def facts(caplog: pytest.LogCaptureFixture, event: str) -> dict[str, Any]:
    (record,) = [record for record in caplog.records if vars(record).get("event_name") == event]
    return {name: getattr(record, name) for name in ("path", "error", "reason", "queue") if hasattr(record, name)}


async def test_an_outage_is_logged_from_its_first_error_to_its_end(
    pair: MemoryPair, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sbclient")
    async with pair.client(options(failover_interval=5)) as client, client.get_queue_sender(QUEUE) as sender:
        pair.primary.inject(Fault(FaultKind.DOWN))
        await _fails(sender.send_messages(ServiceBusMessage("a")))
        await clock.sleep(6.0)
        await sender.send_messages(ServiceBusMessage("a"))
        pair.primary.heal()
        await clock.sleep(70.0)
        await client.run_syphon(until="empty")
    events = logged(caplog)
    assert [name for name in events if name != "failover.ping_failed"] == [
        "pair.opened",
        "failover.suspected",
        "failover.engaged",
        "failover.never_reached",
        "failover.recovered",
        "syphon.started",
        "syphon.ended",
    ]
    assert facts(caplog, "failover.suspected") == {
        "path": QUEUE,
        "error": "ServiceBusConnectionError",
        "reason": "outage",
    }
    assert "failover.ping_failed" in events


async def _fails(work: Any) -> None:
    with pytest.raises(Exception, match="down"):
        await work


async def test_a_failed_backlog_queue_is_logged_once_for_each_quarantine(
    pair: MemoryPair, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sbclient")
    async with pair.client(AT_ONCE) as client, client.get_queue_sender(QUEUE) as sender:
        client.pair.force_failover(QUEUE)
        for queue in BACKLOG[1:]:
            pair.secondary.inject(Fault(FaultKind.DOWN, entity_path=queue))
        for _ in range(5):
            await sender.send_messages(ServiceBusMessage("a"))
        quarantined = [event.path for event in client.pair.events() if event.name == "backlog.quarantined"]
    assert len(quarantined) == len(set(quarantined))
    assert logged(caplog).count("backlog.quarantined") == len(quarantined)


async def test_transitions_are_logged_not_messages(
    pair: MemoryPair, client: ServiceBusClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "sbclient")
    async with client.get_queue_sender(QUEUE) as sender:
        for _ in range(100):
            await sender.send_messages(ServiceBusMessage("a"))
    assert logged(caplog) == []


async def test_silent_until_an_application_listens(pair: MemoryPair, capfd: pytest.CaptureFixture[str]) -> None:
    async with pair.client() as client:
        client.pair.force_failover(QUEUE)
    assert capfd.readouterr() == ("", "")


async def test_events_are_bounded(client: ServiceBusClient, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(EVENTS_KEPT):
        client.pair.force_failover(QUEUE)
        client.pair.mark_healthy(QUEUE)
    events = client.pair.events()
    assert len(events) == EVENTS_KEPT
    assert events[-1].name == "failover.recovered"


def test_the_message_states_the_facts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sbclient")
    get_logger("sbclient.test").warning("a.b", "{path!r} failed: {error}", path="orders", error=ValueError("secret"))
    (record,) = caplog.records
    assert record.getMessage() == "'orders' failed: ValueError"
    assert (record.levelno, vars(record)["event_name"]) == (logging.WARNING, "a.b")
    assert (vars(record)["path"], vars(record)["error"]) == ("orders", "ValueError")


@pytest.mark.parametrize("value", ["a\nb", "a\x1b[2Jb", "a\u2028b", "a\u202eb"])
def test_the_message_escapes_control_characters(value: str) -> None:
    assert sentence("{value}", {"value": value}).isprintable()
    assert sentence("{value!r}", {"value": value}) == repr(value)


def test_a_disabled_level_formats_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Unprintable:
        def __repr__(self) -> str:
            raise AssertionError("formatted")

    caplog.set_level(logging.WARNING, "sbclient")
    get_logger("sbclient.test").info("a.b", "{value!r}", value=Unprintable())
    assert caplog.records == []


def test_the_first_event_imports_nothing() -> None:
    code = """
import sys
from sbclient.telemetry.log import get_logger
before = set(sys.modules)
get_logger("sbclient.test").warning("a.b", "{path!r} failed", path="orders")
sys.exit(repr(set(sys.modules) - before) if set(sys.modules) - before else 0)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


@pytest.mark.parametrize("error", [ServiceBusError("SharedAccessKey=SECRET"), ValueError("SECRET")])
def test_context_variables_of_structlog_are_fields_of_a_record_unless_it_has_them(
    caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    log = get_logger("sbclient.test")
    with structlog.contextvars.bound_contextvars(request="r1", path="not this", name="taken by the record"):
        log.warning("a.b", "{path} failed: {error}", path="orders", error=error)
    log.warning("a.b", "{path} failed", path="orders")
    inside, outside = (vars(record) for record in caplog.records)
    assert (inside["request"], inside["path"], inside["name_"]) == ("r1", "orders", "taken by the record")
    assert (inside["name"], inside["message"]) == ("sbclient.test", f"orders failed: {type(error).__name__}")
    assert "SECRET" not in repr(inside)
    assert not {"request", "name_"} & outside.keys()


def test_a_context_variable_may_have_any_name(caplog: pytest.LogCaptureFixture) -> None:
    log = get_logger("sbclient.test")
    of_records = {*vars(logging.makeLogRecord({})), "message", "asctime"}
    with structlog.contextvars.bound_contextvars(**dict.fromkeys(of_records, "mine")):
        log.warning("a.b", "{path} failed", path="orders")
    (record,) = caplog.records
    assert record.getMessage() == "orders failed"
    assert {name for name, value in vars(record).items() if value == "mine"} == {f"{name}_" for name in of_records}


async def test_context_variables_of_a_sender_reach_the_events_of_its_failover(
    pair: MemoryPair, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair.client(AT_ONCE) as client, client.get_queue_sender(QUEUE) as sender:
        pair.primary.inject(Fault(FaultKind.DOWN))
        with structlog.contextvars.bound_contextvars(request="r1"):
            await sender.send_messages(ServiceBusMessage("a"))
    (engaged,) = [each for each in caplog.records if vars(each).get("event_name") == "failover.engaged"]
    assert vars(engaged)["request"] == "r1"


def test_structlog_prints_facts_and_context_variables_of_our_events(capsys: pytest.CaptureFixture[str]) -> None:
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.ExtraAdder()],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(sort_keys=True),
            ],
        )
    )
    logger = logging.getLogger("sbclient")
    logger.addHandler(handler)
    try:
        with structlog.contextvars.bound_contextvars(request="r1"):
            get_logger("sbclient.test").warning("a.b", "{path} failed", path="orders")
    finally:
        logger.removeHandler(handler)
    printed = json.loads(capsys.readouterr().out)
    assert printed == {"event": "orders failed", "event_name": "a.b", "path": "orders", "request": "r1"}


def test_a_record_has_the_place_of_its_call_and_the_traceback(caplog: pytest.LogCaptureFixture) -> None:
    error = ValueError("wrong")
    get_logger("sbclient.test").error("a.b", "{share} failed", share="100 %", exc_info=error)
    (record,) = caplog.records
    assert (record.getMessage(), record.funcName) == (
        "100 % failed",
        "test_a_record_has_the_place_of_its_call_and_the_traceback",
    )
    assert record.exc_info is not None
    assert record.exc_info[1] is error
