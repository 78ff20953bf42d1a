"""The objects of ours that can be reached from somewhere, and their reprs."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterable, Iterator
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

OURS = ("sbclient", "sbclient_spark")
NOT_FOLLOWED = (ModuleType, type, FunctionType, BuiltinFunctionType, CodeType, FrameType)


def alive(roots: Iterable[Any]) -> Iterator[Any]:
    """Every object of a class of ours, or a task, that some objects hold, themselves included."""
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


def told_by(roots: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """The name of the class and the repr of each, of errors also the text."""
    for each in alive(roots):
        name = f"{type(each).__module__}.{type(each).__qualname__}"
        yield f"the repr of a {name}", repr(each)
        if isinstance(each, BaseException):
            yield f"the text of a {name}", str(each)
