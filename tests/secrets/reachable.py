"""Find the project's objects that are reachable from given objects, and their reprs."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterable, Iterator
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

OURS = ("sbclient", "sbclient_spark")
NOT_FOLLOWED = (ModuleType, type, FunctionType, BuiltinFunctionType, CodeType, FrameType)


def reachable_objects(roots: Iterable[Any]) -> Iterator[Any]:
    """Yield every task and every instance of the project's classes that is reachable from the roots, including them."""
    seen: set[int] = set()
    waiting = list(roots)
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if type(each).__module__.partition(".")[0] in OURS or isinstance(each, asyncio.Task | asyncio.Handle):
            yield each
        if isinstance(each, MethodType):
            waiting.append(each.__self__)
        elif not isinstance(each, NOT_FOLLOWED) and type(each).__module__.partition(".")[0] not in (
            "logging",
            "_pytest",
        ):
            waiting += gc.get_referents(each)


def reprs_of(roots: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """Yield the class name and repr of each reachable object, and the text of each error."""
    for each in reachable_objects(roots):
        name = f"{type(each).__module__}.{type(each).__qualname__}"
        yield f"the repr of a {name}", repr(each)
        if isinstance(each, BaseException):
            yield f"the text of a {name}", str(each)
