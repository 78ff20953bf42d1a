"""Commands whose options are the fields of a class."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def command_of(function: Callable[..., None], make: Callable[..., Any] | None = None) -> Callable[..., None]:
    """Return a command with the options of the class that a function takes first, and its own ones before the last.

    The options are the annotated parameters of the class.

    Args:
        make: makes the object; None = its class.
    """
    first, *own = inspect.signature(function, eval_str=True).parameters.values()
    declared = inspect.signature(first.annotation, eval_str=True).parameters.values()
    shared = [each for each in declared if hasattr(each.annotation, "__metadata__")]

    def call(**given: Any) -> None:
        options = (make or first.annotation)(**{each.name: given.pop(each.name) for each in shared})
        function(options, **given)

    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in (*shared[:-1], *own, shared[-1])]
    vars(call)["__signature__"] = inspect.Signature(parameters)
    call.__annotations__ = {each.name: each.annotation for each in parameters}
    call.__doc__ = function.__doc__
    return call
