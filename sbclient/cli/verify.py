"""`sbclient verify`: runs a conformance check against a namespace and compares the transports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from random import SystemRandom
from typing import Annotated, Any, Final

import typer

from sbclient import clock
from sbclient.administration import ServiceBusAdministrationClient
from sbclient.cli.common import (
    Exit,
    Primary,
    Yes,
    cell,
    chosen_transport,
    command,
    confirm,
    make_console,
    print_json,
    print_line,
    prints_json,
    run,
)
from sbclient.cli.conformance import CHECKS, FILTERED, SUBSCRIPTION, Check, NotAvailableError, Scene
from sbclient.cli.progress import Progress
from sbclient.cli.table import table
from sbclient.client.client import ServiceBusClient
from sbclient.entities import MessagingSku
from sbclient.errors import InvalidOperationError, MessagingEntityNotFoundError, ServiceBusError
from sbclient.rules.conditions import plain_text
from sbclient.rules.connection_string import ConnectionString, parse_connection_string
from sbclient.transport import choice

PREFIX: Final = "sbclient-verify-"
CHECK_S: Final = 90.0
"""How long one check may take."""

PATIENCE_S: Final = 15.0
TIMEOUT_S: Final = 30.0
IDLE: Final = timedelta(minutes=10)
"""The service deletes an unused entity after this time, in case the command is killed."""

CONCURRENT: Final = 4
"""Management requests at once."""


class Compared(StrEnum):
    AMQP = "amqp"
    SDK = "sdk"
    BOTH = "both"


class Result(StrEnum):
    """How a check ended.

    Attributes:
        SAME: every transport behaved as documented.
        DIFFERENT: a transport did not, or both behave differently.
        NOT_AVAILABLE: the namespace or azure-servicebus lacks what the check needs.
    """

    SAME = "same"
    DIFFERENT = "different"
    NOT_AVAILABLE = "not available"


@dataclass(frozen=True, slots=True)
class Observation:
    """What a check observed over one transport.

    Attributes:
        observed: the observation, an error, or the reason why the check did not run.
        seconds: the duration; None if the check did not run.
        is_expected: whether the observation is the documented one.
    """

    observed: str
    seconds: float | None
    is_expected: bool


@dataclass(frozen=True, slots=True)
class Row:
    """A check with its observation by transport."""

    check: Check
    observations: dict[str, Observation]

    @property
    def result(self) -> Result:
        ran = [each for each in self.observations.values() if each.seconds is not None]
        if not all(each.is_expected for each in ran):
            return Result.DIFFERENT
        return Result.SAME if ran else Result.NOT_AVAILABLE


@command
def verify(
    primary: Primary,
    transport: Annotated[
        Compared | None,
        typer.Option(help="The transports to check. Default: both, or the one of `sbclient --transport`."),
    ] = None,
    yes: Yes = False,
) -> None:
    """Check that a namespace behaves as documented, and alike over both transports.

    Creates temporary queues and a topic in the namespace and deletes them afterwards, also after Ctrl-C. Needs the
    right to manage entities. Exit status: 0 everything is as documented; 1 there is a difference.

    \b
    Example: sbclient verify
    Example: sbclient verify --transport amqp --yes --json
    """
    connection = parse_connection_string(primary)
    if connection.is_memory:
        raise InvalidOperationError(
            f"{connection.namespace} is in this process and has no transport to verify: give the connection string of "
            "a namespace on the network, such as one of `sbclient emulator`"
        )
    compared = Compared(transport or chosen_transport() or Compared.BOTH)
    names = choice.NAMES if compared is Compared.BOTH else (compared.value,)
    prefix = f"{PREFIX}{SystemRandom().getrandbits(32):08x}-"
    question = f"Create temporary queues and a topic named {prefix}… in {connection.namespace}, and delete them?"
    confirm(question, yes=yes)
    progress = Progress("creating entities")
    rows, remaining = run(_verify(connection, names, prefix, progress), progress=progress)
    if prints_json():
        print_json(_shown(connection.namespace, rows, remaining))
    else:
        print_rows(rows, names)
    if remaining or any(row.result is Result.DIFFERENT for row in rows):
        raise typer.Exit(Exit.INCOMPLETE)


async def _verify(
    connection: ConnectionString, transports: Sequence[str], prefix: str, progress: Progress
) -> tuple[list[Row], list[str]]:
    """Run all checks; return their results, and the names of entities that could not be deleted."""
    rows: list[Row] = []
    async with AsyncExitStack() as stack:
        clients = {}
        for name in transports:
            clients[name] = await stack.enter_async_context(
                ServiceBusClient(connection, transport=name, timeout=TIMEOUT_S)
            )
        entities = Entities(clients[transports[0]].administration, progress)
        wanted = {
            f"{prefix}{number}-{name}": check
            for number, check in enumerate(CHECKS)
            for name in transports
            if check.is_for_sdk or name != "sdk"
        }
        async with entities.created(wanted):
            for number, check in enumerate(CHECKS):
                observations = {}
                for name in transports:
                    progress.show(f"{check.name} over {name}")
                    entity = f"{prefix}{number}-{name}"
                    if entity not in wanted:
                        observations[name] = Observation("azure-servicebus has no such operation", None, True)
                    elif (reason := entities.refused.get(entity)) is not None:
                        observations[name] = Observation(reason, None, True)
                    else:
                        observations[name] = await _observe(check, connection, name, clients[name], entity)
                rows.append(Row(check, observations))
            progress.show("deleting entities")
    return rows, entities.remaining


async def _observe(
    check: Check, connection: ConnectionString, transport: str, client: ServiceBusClient, entity: str
) -> Observation:

    def with_key(key: str) -> ServiceBusClient:
        return ServiceBusClient(replace(connection, key=key), transport=transport, timeout=TIMEOUT_S)

    scene = Scene(client, entity, PATIENCE_S, with_key if connection.key is not None else None)
    began_at = clock.monotonic()
    try:
        async with clock.timeout(CHECK_S):
            observed = await check.run(scene)
    except NotAvailableError as error:
        return Observation(str(error), None, True)
    except TimeoutError:
        observed = f"no result within {CHECK_S:g} s"
    except Exception as error:  # whatever it is, the other checks go on
        observed = f"{type(error).__name__}: {plain_text(str(error))}"
    return Observation(observed, round(clock.monotonic() - began_at, 3), observed == check.expected)


class Entities:
    """The temporary entities of a run.

    Attributes:
        refused: the reason by name of an entity that the namespace does not offer.
        remaining: the names of those that could not be deleted.
    """

    def __init__(self, administration: ServiceBusAdministrationClient, progress: Progress) -> None:
        self._administration = administration
        self._progress = progress
        self._permits = asyncio.Semaphore(CONCURRENT)
        self.refused: dict[str, str] = {}
        self.remaining: list[str] = []

    @asynccontextmanager
    async def created(self, wanted: dict[str, Check]) -> AsyncIterator[None]:
        """Create an empty entity for each check, and delete all of them at the end.

        Raises:
            ServiceBusError: the namespace cannot be managed.
        """
        is_basic = (await self._administration.get_namespace_properties()).messaging_sku is MessagingSku.BASIC
        common: dict[str, Any] = {} if is_basic else {"auto_delete_on_idle": IDLE}
        creating = [asyncio.ensure_future(self._create(name, check, common)) for name, check in wanted.items()]
        try:
            for each in creating:
                await asyncio.shield(each)
            yield
        finally:
            # A request that was sent may still create an entity, so every request ends before the deletion begins.
            await asyncio.gather(*creating, return_exceptions=True)
            await asyncio.gather(*(self._delete(name, check) for name, check in wanted.items()))
            for name in self.remaining:
                self._progress.print_above(f"sbclient verify: {name} could not be deleted: use sbclient admin delete")

    async def _create(self, name: str, check: Check, common: dict[str, Any]) -> None:
        async with self._permits:
            try:
                if check.is_topic:
                    await self._administration.create_topic(name, **common)
                    for subscription in (SUBSCRIPTION, FILTERED):
                        await self._administration.create_subscription(name, subscription)
                else:
                    await self._administration.create_queue(name, **common, **check.description)
            except InvalidOperationError as error:
                self.refused[name] = plain_text(str(error))

    async def _delete(self, name: str, check: Check) -> None:
        delete = self._administration.delete_topic if check.is_topic else self._administration.delete_queue
        async with self._permits:
            try:
                await delete(name)
            except MessagingEntityNotFoundError:
                pass
            except ServiceBusError:
                self.remaining.append(name)


def print_rows(rows: Sequence[Row], transports: Sequence[str]) -> None:
    """Print a table of the checks, then the details of differences and the reasons of checks that did not run."""
    cells = []
    for row in rows:
        seconds = [row.observations[name].seconds for name in transports]
        times = ["-" if each is None else f"{each:.2f} s" for each in seconds]
        cells.append([cell(each) for each in (row.check.name, *times, row.result)])
    console = make_console()
    console.print(table(["check", *transports, "result"], cells, console.width, numbers=transports))
    for row in rows:
        if row.result is Result.DIFFERENT:
            print_line("")
            print_line(f"{row.check.name}: expected {row.check.expected}")
            for name, each in row.observations.items():
                print_line(f"  {name}: {each.observed}")
        else:
            missing = {each.observed: name for name, each in row.observations.items() if each.seconds is None}
            for reason, name in missing.items():
                print_line("")
                print_line(f"{row.check.name} was not checked over {name}: {reason}")


def _shown(namespace: str, rows: Sequence[Row], remaining: Sequence[str]) -> dict[str, Any]:
    return {
        "namespace": namespace,
        "checks": [
            {
                "name": row.check.name,
                "result": row.result,
                "expected": row.check.expected,
                "transports": {
                    name: {"observed": each.observed, "seconds": each.seconds, "is_expected": each.is_expected}
                    for name, each in row.observations.items()
                },
            }
            for row in rows
        ],
        "not_deleted": list(remaining),
    }
