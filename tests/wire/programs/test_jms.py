"""JMS 2.0 on a Premium namespace, and its refusal on a Standard one: Qpid JMS and azure-servicebus-jms."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from sbclient.emulator import Emulator
from tests.stage.serving import ServingThread, serving
from tests.wire.programs import check_lines
from tests.wire.programs.azure_host import NAME
from tests.wire.programs.java_programs import connection_string, run_java

ADDRESS: Final = "127.0.0.7"
QUEUES: Final = ("queue", "selector", "delay", "transacted", "moved", "browser", "requests")
CHECKS: Final = {
    "JmsQueues": ("queue", "selector", "delay", "transacted", "browser", "temporary"),
    "JmsTopics": ("topic", "durable", "existing", "shared"),
}
"""The checks of each program."""


@contextmanager
def premium(thread: ServingThread, profile: str = "prem-2021") -> Iterator[Emulator]:
    """An emulator with the entities of the checks."""
    with serving(thread, "contoso:5671", host=ADDRESS, profile=profile, certificate_names=[NAME]) as emulator:
        for name in QUEUES:
            emulator.create_queue(name)
        emulator.create_topic("topic")
        emulator.create_subscription("topic", "existing")
        yield emulator


def checked(
    program: str, library: str, checks: tuple[str, ...], emulator: Emulator, thread: ServingThread
) -> list[str]:
    address = f"amqp://{ADDRESS}:5671?jms.prefetchPolicy.all=0" if library == "qpid" else connection_string()
    replace = {} if library == "qpid" else {"jakarta.jms": "javax.jms"}
    arguments = [library, address, *checks]
    return run_java(program, library, arguments, emulator, thread, address=ADDRESS, replace=replace)


@pytest.mark.parametrize("program", CHECKS)
@pytest.mark.parametrize("library", ["qpid", "azure"])
def test_premium_namespace_has_jms(library: str, program: str, thread: ServingThread) -> None:
    with premium(thread) as emulator:
        check_lines(checked(program, library, CHECKS[program], emulator, thread), CHECKS[program])
        left = [entity.path for entity in emulator.context().host.namespace.directory.all()]
        assert sorted(left) == sorted([*QUEUES, "topic", "topic/Subscriptions/existing"])


def test_standard_namespace_has_queues_and_subscriptions_only(thread: ServingThread) -> None:
    with premium(thread, "std-2021") as emulator:
        for program, checks in (("JmsQueues", ("queue", "transacted")), ("JmsTopics", ("existing",))):
            check_lines(checked(program, "qpid", checks, emulator, thread), checks)
        (line,) = checked("JmsQueues", "azure", ("queue",), emulator, thread)
        assert "supported only by a Premium Messaging namespace" in line
