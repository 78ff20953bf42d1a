"""What is wrong with a pair has the same code and the same words wherever it is shown."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from sbclient import clock
from sbclient.backlog import Backlog
from sbclient.errors import (
    MessagingEntityDisabledError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)
from sbclient.testing import Fault, FaultKind, MemoryPair
from sbclient.worker.diagnosis import CLOCK, Diagnosis, Doctor
from sbclient.worker.dry_run import dry_run
from sbclient.worker.http_api import WorkerApi
from sbclient.worker.inspection import SECONDARY, sides_of, surveyed
from sbclient.worker.readiness import SYPHON
from tests.client.scene import BACKLOG, QUEUE, make_queue, options
from tests.worker.scene import Run, make_backlog, request_to

STRINGS: Final = ("memory://contoso", "memory://contoso-backup")
COUNT: Final = 3

Arrange = Callable[[MemoryPair], Awaitable[None]]


def fault(side: str, *kind: Any, **more: Any) -> Arrange:
    async def arrange(pair: MemoryPair) -> None:
        await make_backlog(pair, backlog_queue_count=COUNT)
        getattr(pair, side).inject(Fault(*kind, **more))

    return arrange


def queue(number: int, **settings: Any) -> Arrange:
    async def arrange(pair: MemoryPair) -> None:
        await make_queue(pair, "elsewhere", secondary=True)
        for index in range(COUNT):
            await make_queue(pair, BACKLOG[index], secondary=True, **(settings if index == number else {}))

    return arrange


def only(*queues: str, has_entity: bool = True) -> Arrange:
    async def arrange(pair: MemoryPair) -> None:
        if not has_entity:
            async with pair.unpaired_client() as client:
                await client.administration.delete_queue(QUEUE)
        for name in queues:
            await make_queue(pair, name, secondary=True)

    return arrange


SITUATIONS: Final[dict[str, tuple[Arrange, list[str], bool]]] = {
    "nothing wrong": (only(*BACKLOG[:COUNT]), [], False),
    **{
        f"{side}: {error.__name__}": (
            fault(side, FaultKind.ERROR, error=error),
            [f"{side}_rejects_credential"],
            True,
        )
        for side in ("primary", "secondary")
        for error in (ServiceBusAuthenticationError, ServiceBusAuthorizationError)
    },
    "primary down": (fault("primary", FaultKind.DOWN), ["primary_unreachable"], False),
    "secondary down": (fault("secondary", FaultKind.DOWN), ["secondary_unreachable"], False),
    "no entity": (only(*BACKLOG[:COUNT], has_entity=False), ["entity_missing"], False),
    "no backlog queue": (only(), ["queues_missing"], True),
    "a backlog queue missing": (only(*BACKLOG[1:COUNT]), ["queues_missing"], False),
    "a backlog queue with sessions": (queue(1, requires_session=True), ["queue_unusable"], True),
    "a backlog queue that forwards": (queue(0, forward_to="elsewhere"), ["queue_unusable"], True),
    "a backlog queue that receives nothing": (
        fault("secondary", FaultKind.ERROR, entity_path=BACKLOG[2], error=MessagingEntityDisabledError),
        ["queues_unavailable"],
        False,
    ),
}


async def examined(pair: MemoryPair) -> tuple[Diagnosis, dict[str, list[str]]]:
    """Return what the doctor finds, and the codes of each place. An error must have the words of a finding."""
    codes: dict[str, list[str]] = {}
    async with pair.client(options(provision="none", backlog_queue_count=COUNT)) as client:
        doctor = Doctor(client, *STRINGS, entity=QUEUE)
        diagnosis = await doctor.examine(sample_s=0)
        problems = [one for one in diagnosis.problems if one.about not in (SYPHON, CLOCK)]
        codes["doctor"] = [one.code for one in problems]

        def said(error: ServiceBusError) -> list[str]:
            return [one.code for one in problems if one.as_error().message == error.message] or [error.message]

        try:
            sides = sides_of(client.pair, *STRINGS, {})
            found = await dry_run(client, BACKLOG[:COUNT], are_chosen=False, entity=QUEUE, sides=sides)
            codes["dry run"] = [one.code for one in found.findings]
        except ServiceBusError as error:
            codes["dry run"] = said(error)
        try:
            views = await surveyed(client.pair, Backlog(client.pair), doctor.sides[SECONDARY], 100)
            explained = await doctor.explain(views, has_moved=False)
            codes["backlog"] = [one.code for one in explained.problems if one.about not in (SYPHON, CLOCK)]
        except ServiceBusError as error:
            codes["backlog"] = said(error)
    run = Run(
        pair,
        primary=STRINGS[0],
        secondary=STRINGS[1],
        provision=False,
        backlog_queue_count=COUNT,
        probe_entity=QUEUE,
        http_port=0,
    )
    await clock.sleep(20.0)
    answer = json.loads(WorkerApi(run.worker, lambda: ("", b"")).answer(request_to("/readyz")).body)
    try:
        await run.ended()
        codes["/readyz"] = [one["code"] for one in answer["findings"] if one["about"] != SYPHON]
    except ServiceBusError as error:
        codes["start"] = said(error)
    return diagnosis, codes


@pytest.mark.parametrize("name", SITUATIONS)
async def test_every_place_shows_the_same_finding(pair: MemoryPair, name: str) -> None:
    arrange, expected, ends = SITUATIONS[name]
    await arrange(pair)
    diagnosis, codes = await examined(pair)
    assert all(one.code and one.advice for one in diagnosis.problems)
    assert {place: sorted(set(found)) for place, found in codes.items()} == dict.fromkeys(codes, expected)
    assert set(codes) == {"doctor", "dry run", "backlog", "start" if ends else "/readyz"}
