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
from collections.abc import Collection, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbclient import ServiceBusError, ServiceBusMessage, clock
from sbclient.errors import MessageAlreadySettled, ServiceBusCommunicationError
from sbclient.testing import VirtualLoop
from tests.border.methods import ROWS, Fresh, Row, public_parameters
from tests.border.scene import Scene
from tests.border.values import Boom, hostile_values

T = TypeVar("T")

Case: TypeAlias = tuple[tuple[str, str], ...]
"""Names of parameters, each with the name of its value."""

AT_ONCE_S = 1.0
REFUSED = "refused"
COMBINATIONS = 12
"""Calls of one example."""
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


def _is_clear(error: BaseException, values: Collection[str]) -> bool:
    if isinstance(error, ServiceBusError):
        return not error.is_outage and not isinstance(error, ServiceBusCommunicationError)
    is_of_user = isinstance(error, Boom) and not {"failing", "hostile", "untellable"}.isdisjoint(values)
    return type(error) in (TypeError, ValueError, MessageAlreadySettled) or is_of_user


async def outcome(
    scene: Scene, transport: str, method: str, chosen: Mapping[str, str], *, is_in_list: bool = False
) -> tuple[str, list[str]]:
    """Call a method with arguments that it takes, but for some; return what became of it, and what broke a law.

    Args:
        chosen: the names of the values of some parameters.
        is_in_list: whether each value stands in a list behind one that the method takes.
    """
    row, wrong = ROWS[method], []
    arguments: dict[str, Any] = {}
    for each, valid in row.arguments.items():
        if is_in_list or each not in chosen:
            made = valid.make(scene) if isinstance(valid, Fresh) else valid
            arguments[each] = await made if inspect.isawaitable(made) else made
    for each, name in chosen.items():
        value = hostile_values()[name]
        arguments[each] = [arguments[each], value] if is_in_list else value
    if method == "ServiceBusReceiver.receive_messages":
        await scene.sender.send_messages(ServiceBusMessage("m"))
    before, began_at = scene.state(), clock.monotonic()
    shown = ", ".join(f"{each}={'a list with ' if is_in_list else ''}{name}" for each, name in chosen.items())
    case = f"{transport}: {method}({shown})"
    try:
        answer = await asyncio.wait_for(_result(scene, row, arguments), 60)
    except BaseException as error:
        found = REFUSED
        if not _is_clear(error, chosen.values()):
            wrong.append(f"{case}: {type(error).__name__}: {str(error)[:200]}")
        is_partial = any("partitions failed" in note for note in getattr(error, "__notes__", ()))  # as documented
        if not row.is_pure and not is_partial and scene.state() != before:
            wrong.append(f"{case}: changed the namespace, {type(error).__name__}")
    else:
        found = repr(answer) if row.then else "accepted"
        await _give_back(scene, answer)
    if clock.monotonic() - began_at > AT_ONCE_S:
        wrong.append(f"{case}: took {clock.monotonic() - began_at:.0f} s, {found}")
    return found, wrong


async def _check_works(scene: Scene, method: str) -> None:
    if not ROWS[method].is_pure:
        await scene.receiver.complete_message(await scene.locked())
        await scene.session.renew_lock()


async def outcomes(
    transport: str, method: str, cases: Iterable[Case], *, are_in_lists: bool = False
) -> tuple[dict[Case, str], list[str]]:
    """Return what became of each case, and what broke a law."""
    found: dict[Case, str] = {}
    wrong: list[str] = []
    async with Scene(transport) as scene:
        for case in cases:
            found[case], more = await outcome(scene, transport, method, dict(case), is_in_list=are_in_lists)
            wrong += more
        if not ROWS[method].is_pure:
            await scene.receiver.complete_message(await scene.locked())
            await scene.session.renew_lock()
    return found, wrong


def compared(method: str, cases: Sequence[Case], **options: Any) -> tuple[dict[Case, str], list[str]]:
    """Return what became of each case in memory, and what broke a law on a transport or differs between them."""
    found, wrong = run(outcomes("memory", method, cases, **options))
    if not ROWS[method].is_pure:
        over_amqp, more = run(outcomes("amqp", method, cases, **options))
        wrong += more
        wrong += [
            f"{method}{case}: {found[case]:.300} over memory, {over_amqp[case]:.300} over AMQP"
            for case in found
            if found[case] != over_amqp[case]
        ]
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
    found, wrong = compared(method, single(method))
    assert not wrong, "\n".join(wrong)
    known = [line for line in ACCEPTED if line.startswith(f"{method}(")]
    assert lines_of(method, found) == known, "if the new lines are right, run python -m tests.border"


SEVERAL = {
    "ServiceBusReceiver.receive_deferred_messages": "sequence_numbers",
    "ServiceBusSender.cancel_scheduled_messages": "sequence_numbers",
    "ServiceBusSender.schedule_messages": "messages",
    "ServiceBusSender.send_messages": "message",
}
"""Parameters that take several values."""


@pytest.mark.parametrize("method", SEVERAL)
def test_no_value_behind_a_good_one_breaks_a_call(method: str) -> None:
    _, wrong = compared(method, [((SEVERAL[method], name),) for name in NAMES], are_in_lists=True)
    assert not wrong, "\n".join(wrong)


ALONE = {line.partition(":")[0]: line.partition(":")[2].strip().split(", ") for line in ACCEPTED}
"""The names of the values that each parameter accepts, by `method(parameter)`."""


@st.composite
def combinations(draw: st.DrawFn, method: str) -> Case:
    """Values of two or three parameters of a method; most of them are accepted alone."""
    parameters = list(ROWS[method].arguments)
    chosen = draw(st.lists(st.sampled_from(parameters), min_size=2, max_size=3, unique=True))
    values = []
    for each in chosen:
        accepted = [name for name in ALONE[f"{method}({each})"] if name]
        names = st.sampled_from(accepted or NAMES) | st.sampled_from(NAMES)
        values.append((each, draw(names)))
    return tuple(values)


@pytest.mark.parametrize("method", [name for name in sorted(ROWS) if len(ROWS[name].arguments) > 1])
@settings(derandomize=True, database=None, max_examples=3, deadline=None)
@given(data=st.data())
def test_no_values_of_several_parameters_break_a_call(method: str, data: st.DataObject) -> None:
    cases = data.draw(st.lists(combinations(method), min_size=COMBINATIONS, max_size=COMBINATIONS))
    found, wrong = compared(method, cases)
    wrong += [
        f"{method}{case} is accepted"
        for case, what in found.items()
        if what != REFUSED and any(name not in ALONE[f"{method}({each})"] for each, name in case)
    ]
    assert not wrong, "\n".join(wrong)


def single(method: str) -> list[Case]:
    """Every value of every parameter of a method, alone."""
    return [((parameter, name),) for parameter in ROWS[method].arguments for name in NAMES]


def lines_of(method: str, found: Mapping[Case, str]) -> list[str]:
    """Return the lines of `accepted.txt` for a method."""
    return [
        f"{method}({parameter}): {', '.join(name for name in NAMES if found[(parameter, name),] != REFUSED)}".rstrip()
        for parameter in ROWS[method].arguments
    ]
