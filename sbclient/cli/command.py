"""Commands whose options are declared as parameters that Python does not see."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any


def declare(command: Callable[..., None], parameters: Iterable[inspect.Parameter]) -> Callable[..., None]:
    """Let Typer see these parameters of a function, as keywords; return the function."""
    keywords = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    vars(command)["__signature__"] = inspect.Signature(keywords)
    command.__annotations__ = {each.name: each.annotation for each in keywords}
    return command


def command_of(function: Callable[..., None], make: Callable[..., Any] | None = None) -> Callable[..., None]:
    """Return a command with the options of the class that a function takes first, and then its own ones.

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

    call.__name__, call.__doc__ = function.__name__, function.__doc__
    return declare(call, (*shared, *own))
