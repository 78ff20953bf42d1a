"""No value that a user hands in leads anywhere but to a right result or to a clear error at once.

Laws, each checked for every public method, each of its parameters and every value, on every transport:

1. What is refused raises a `TypeError`, a `ValueError` or an error of this package that is neither an outage nor
   internal, within a second.
2. A refused call changes nothing in the namespace.
3. The objects work afterwards, and a call that waits meanwhile is not disturbed.
4. The transports agree: a value is accepted by all, and what arrives is equal, or by none.
5. `accepted.txt` names the values that each parameter accepts. `python -m tests.border` writes it anew; read what it
   changes.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest

from sbclient import ServiceBusError, ServiceBusMessage, clock
from sbclient.errors import MessageAlreadySettled, ServiceBusCommunicationError
from sbclient.testing import VirtualLoop
from tests.border.methods import ROWS, Fresh, Row, public_parameters
from tests.border.scene import Scene
from tests.border.values import Boom, hostile_values

T = TypeVar("T")

AT_ONCE_S = 1.0
TABLE = Path(__file__).with_name("accepted.txt")
ACCEPTED = TABLE.read_text(encoding="utf-8").splitlines() if TABLE.exists() else []
NAMES = tuple(hostile_values())

pytestmark = pytest.mark.filterwarnings("ignore:(options of azure|parts of the connection)")


def run(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(epoch=1_700_000_000.0)) as runner:
        return runner.run(work)


def test_every_public_method_is_in_the_table() -> None:
    assert {name: sorted(row.arguments) for name, row in ROWS.items()} == {
        name: sorted(names) for name, names in public_parameters().items()
    }


async def _result(scene: Scene, row: Row, arguments: dict[str, Any]) -> Any:
    answer = row.of(scene)(**arguments)
    if inspect.isasyncgen(answer):
        return [each async for each in answer]
    if inspect.isawaitable(answer):
        answer = await answer
    return answer if row.then is None else await row.then(scene, answer)


def _is_clear(error: BaseException, value: str) -> bool:
    if isinstance(error, ServiceBusError):
        return not error.is_outage and not isinstance(error, ServiceBusCommunicationError)
    is_of_user = value in ("failing", "hostile", "untellable") and isinstance(error, Boom)
    return type(error) in (TypeError, ValueError, MessageAlreadySettled) or is_of_user


async def outcomes(transport: str, method: str) -> tuple[dict[tuple[str, str], str], list[str]]:
    """Return what became of each value of each parameter of a method, and what broke a law."""
    row, found, wrong = ROWS[method], {}, []
    async with Scene(transport) as scene:
        for parameter in row.arguments:
            for name in NAMES:
                arguments = {}
                for each, valid in row.arguments.items():
                    made = valid.make(scene) if isinstance(valid, Fresh) and each != parameter else valid
                    arguments[each] = await made if inspect.isawaitable(made) else made
                arguments[parameter] = hostile_values()[name]
                if method == "ServiceBusReceiver.receive_messages":
                    await scene.sender.send_messages(ServiceBusMessage("m"))
                before, began_at = scene.state(), clock.monotonic()
                case = f"{transport}: {method}({parameter}={name})"
                try:
                    answer = await asyncio.wait_for(_result(scene, row, arguments), 60)
                except BaseException as error:
                    found[parameter, name] = "refused"
                    if not _is_clear(error, name):
                        wrong.append(f"{case}: {type(error).__name__}: {str(error)[:200]}")
                    if not row.is_pure and scene.state() != before:
                        wrong.append(f"{case}: changed the namespace, {type(error).__name__}")
                else:
                    found[parameter, name] = repr(answer) if row.then else "accepted"
                    await _give_back(scene, answer)
                if clock.monotonic() - began_at > AT_ONCE_S:
                    wrong.append(f"{case}: took {clock.monotonic() - began_at:.0f} s, {found[parameter, name]}")
        if not row.is_pure:
            await scene.receiver.complete_message(await scene.locked())
            await scene.session.renew_lock()
    return found, wrong


async def _give_back(scene: Scene, answer: Any) -> None:
    """Undo what would disturb the next case."""
    if isinstance(answer, list):
        for message in answer:
            if getattr(message, "lock_token", None) is not None:
                await scene.receiver.complete_message(message)
    elif hasattr(answer, "close") and hasattr(answer, "__aexit__"):
        await answer.close()


@pytest.mark.parametrize("method", sorted(ROWS))
def test_no_value_breaks_a_call_or_has_two_outcomes(method: str) -> None:
    found, wrong = run(outcomes("memory", method))
    if not ROWS[method].is_pure:
        over_amqp, more = run(outcomes("amqp", method))
        wrong += more
        wrong += [
            f"{method}{case}: {found[case]:.300} over memory, {over_amqp[case]:.300} over AMQP"
            for case in found
            if found[case] != over_amqp[case]
        ]
    assert not wrong, "\n".join(wrong)
    assert lines_of(method, found) == [line for line in ACCEPTED if line.startswith(f"{method}(")]


def lines_of(method: str, found: Mapping[tuple[str, str], str]) -> list[str]:
    """Return the lines of `accepted.txt` for a method."""
    return [
        f"{method}({parameter}): {', '.join(name for name in NAMES if found[parameter, name] != 'refused')}".rstrip()
        for parameter in ROWS[method].arguments
    ]
