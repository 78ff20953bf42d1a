"""The cells of the matrix, and their check.

All rights x all operations, all scopes x all operations and all flaws x all operations, with the other values valid;
and a few thousand other combinations, drawn by a seed.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, Generic, Protocol, TypeVar

from sbclient.entities import AccessRights
from tests.rights.credentials import EVERY_RIGHT, FLAWLESS, FLAWS, RIGHTS, Flaw, Scope, own_scope, scopes_of
from tests.rights.world import World


class Operation(Protocol):
    """One operation, over AMQP or HTTP."""

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> str:
        """Path of the entity from which scopes are derived."""


O = TypeVar("O", bound=Operation)  # noqa: E741
R = TypeVar("R")


@dataclass(frozen=True)
class Cell(Generic[O]):
    """One combination of an operation and a token."""

    operation: O
    rights: frozenset[AccessRights]
    scope: Scope
    flaw: Flaw

    def __str__(self) -> str:
        rights = "+".join(sorted(self.rights)) or "no right"
        return f"{self.operation.name} | {rights} | {self.scope.name} | flaw: {self.flaw.name}"


def by_rights(operations: Sequence[O]) -> Iterator[Cell[O]]:
    for operation in operations:
        for rights in RIGHTS:
            for scope in scopes_of(operation.path):
                if scope.name in ("the namespace", "the path by the entity's key"):
                    yield Cell(operation, rights, scope, FLAWLESS)


def by_scope(operations: Sequence[O]) -> Iterator[Cell[O]]:
    for operation in operations:
        for scope in scopes_of(operation.path):
            yield Cell(operation, EVERY_RIGHT, scope, FLAWLESS)


def by_flaw(operations: Sequence[O]) -> Iterator[Cell[O]]:
    for operation in operations:
        for flaw in FLAWS:
            yield Cell(operation, EVERY_RIGHT, own_scope(operation.path), flaw)


def drawn(operations: Sequence[O], count: int) -> Iterator[Cell[O]]:
    random = Random(19)
    for _ in range(count):
        operation = random.choice(operations)
        scope = random.choice(list(scopes_of(operation.path)))
        yield Cell(operation, random.choice(RIGHTS), scope, random.choice(FLAWS))


SETS: Final = ("rights", "scopes", "flaws", "drawn")

STRIDE: Final = int(os.environ.get("RIGHTS_STRIDE", "6"))
"""The tests check each sixth cell; `.ci/proofs rights` checks all."""


def cells(which: str, operations: Sequence[O]) -> list[Cell[O]]:
    """The cells of one of the sets."""
    if which == "drawn":
        return list(drawn(operations, 600))
    if which == "rights":
        return list(by_rights(operations))
    return list(by_scope(operations) if which == "scopes" else by_flaw(operations))


def checked(which: str, operations: Sequence[O]) -> list[Cell[O]]:
    """Return the cells of a set that the tests check: each `STRIDE`th, and the first with an operation or a value."""
    chosen, met = [], set[tuple[str, str]]()
    for at, cell in enumerate(cells(which, operations)):
        values = {
            ("operation", cell.operation.name),
            ("rights", "+".join(sorted(cell.rights))),
            ("scope", cell.scope.name),
            ("flaw", cell.flaw.name),
        }
        if at % STRIDE == 0 or not values <= met:
            chosen.append(cell)
            met |= values
    return chosen


def distinct(operations: Sequence[O]) -> set[str]:
    """All cells of all sets, by name."""
    return {str(cell) for which in SETS for cell in cells(which, operations)}


class Worlds:
    """Namespaces for the requests: one is used again as long as nothing in it has changed."""

    def __init__(self) -> None:
        self._worlds: dict[object, World] = {}

    def world(self, cell: Cell[O]) -> World:
        key = cell.rights, cell.flaw.mode
        if key not in self._worlds:
            self._worlds[key] = World(cell.rights, cell.flaw.mode)
        return self._worlds[key]

    def has_changed(self, cell: Cell[O]) -> bool:
        """Whether the operation changed the cell's namespace; a changed namespace is not used again."""
        key = cell.rights, cell.flaw.mode
        if self._worlds[key].print() == self._worlds[key].at_first:
            return False
        del self._worlds[key]
        return True


async def check(
    cells: Sequence[Cell[O]],
    seen: Callable[[Cell[O], World], Awaitable[R]],
    expected: Callable[[Cell[O]], R],
    is_refusal: Callable[[R], bool],
    changes: Callable[[O], bool] | None = None,
) -> None:
    """Perform the operation of each cell, and fail with a line for each wrong result.

    Args:
        seen: performs the operation of a cell and returns its result.
        expected: returns the right result.
        is_refusal: whether a result means that nothing may change.
        changes: whether an operation that is allowed changes something; None = not checked.
    """
    worlds, wrong = Worlds(), []
    for cell in cells:
        found, wanted = await seen(cell, worlds.world(cell)), expected(cell)
        has_changed = worlds.has_changed(cell)
        if found != wanted:
            wrong.append(f"{cell}: {wanted} is right, {found} came")
        elif changes is not None and not is_refusal(wanted) and has_changed is not changes(cell.operation):
            wrong.append(f"{cell}: it was allowed and {'something' if has_changed else 'nothing'} has changed")
        elif is_refusal(wanted) and has_changed:
            wrong.append(f"{cell}: it was refused and yet something has changed")
    assert not wrong, f"{len(wrong)} of {len(cells)} cells:\n" + "\n".join(wrong[:20])
