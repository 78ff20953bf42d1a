"""Checks the arguments of the public methods of a class by the types and kinds of their parameters.

    @checked
    class ServiceBusReceiver:
        async def receive_messages(self, max_message_count: Count | None = 1, ...) -> ...

`receive_messages` is replaced by a method with the same parameters that checks them and calls the original one. Its
text is compiled, as dataclasses do: a loop over the arguments takes ten times as long.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import update_wrapper
from types import FunctionType, NoneType, UnionType
from typing import Annotated, Any, Final, ForwardRef, Literal, TypeVar, Union, get_args, get_origin

from sbclient.arguments.kinds import Kind, instance_of, one_of, word_of

C = TypeVar("C", bound=type[Any])

_UNIONS: Final = (Union, UnionType)


def checked(owner: C) -> C:
    """Check the arguments of every public method that a class defines, and of its constructor."""
    names: dict[str, Any] = {"__name__": __name__}  # a line of this package, not of the program
    lines: list[str] = []
    functions = {name: function for name, function in _functions(owner) if kinds_of(function, owner)}
    for name, function in functions.items():
        lines += _text(name, function, kinds_of(function, owner), names)
    exec(compile("\n".join(lines), f"<arguments of {owner.__name__}>", "exec"), names)
    for name, function in functions.items():
        checking = update_wrapper(names[name], function)
        setattr(owner, name, classmethod(checking) if isinstance(vars(owner)[name], classmethod) else checking)
    return owner


def _functions(owner: type[Any]) -> Iterator[tuple[str, FunctionType]]:
    for name, member in vars(owner).items():
        function = member.__func__ if isinstance(member, classmethod) else member
        if isinstance(function, FunctionType) and (not name.startswith("_") or name == "__init__"):
            yield name, function


def _text(
    method: str, function: FunctionType, kinds: Mapping[str, tuple[Kind, bool]], names: dict[str, Any]
) -> list[str]:
    """Return the lines of a method that checks its arguments, and add what they use to the names."""
    declared, passed, checks = [], [], []
    names[f"{method}_call"] = function
    for each in inspect.signature(function).parameters.values():
        own = f"{method}_{each.name}"
        if each.kind is each.KEYWORD_ONLY and "*" not in declared:
            declared.append("*")
        stars = "**" if each.kind is each.VAR_KEYWORD else ""
        passed.append(f"{each.name}={each.name}" if each.kind is each.KEYWORD_ONLY else stars + each.name)
        if each.default is each.empty:
            declared.append(stars + each.name)
        else:
            names[f"{own}_default"] = each.default
            declared.append(f"{each.name}={own}_default")
        if each.name in kinds:
            kind, may_be_none = kinds[each.name]
            is_one = len(kind.types) == 1  # `is` takes half of the time of `in`
            names |= {f"{own}_check": kind.check, f"{own}_types": kind.types[0] if is_one else kind.types}
            passes = [f"{each.name} is None"] if may_be_none else []
            if kind.types:
                condition = f" and {kind.condition.replace('{}', '{0}').format(each.name)}" if kind.condition else ""
                if kind.takes_subclasses:  # as the messages that a transport reads
                    passes.append(f"isinstance({each.name}, {own}_types){condition}")
                else:
                    passes.append(f"type({each.name}) {'is' if is_one else 'in'} {own}_types{condition}")
            checks.append(f"    if not ({' or '.join(passes) or False}):")
            checks.append(f"        {each.name} = {own}_check({each.name!r}, {each.name})")
    is_async = inspect.iscoroutinefunction(function)
    first = f"{'async ' if is_async else ''}def {method}({', '.join(declared)}):"
    return [first, *checks, f"    return {'await ' if is_async else ''}{method}_call({', '.join(passed)})"]


def kinds_of(function: Callable[..., Any], owner: type[Any]) -> Mapping[str, tuple[Kind, bool]]:
    """Return the kind of each parameter that is checked, and whether the parameter may also be None.

    A parameter is not checked if its type says nothing about its values, or names a class that is not defined yet.
    """
    kinds = {}
    function = inspect.unwrap(function)
    names = {owner.__name__: owner}
    for name, annotation in function.__annotations__.items():
        try:
            hint = eval(annotation, function.__globals__, names) if isinstance(annotation, str) else annotation
        except NameError:
            continue
        kind = _kind_of(hint, names)
        if kind is not None and name != "return":
            kinds[name] = (kind, NoneType in get_args(hint))
    return kinds


def _kind_of(hint: Any, names: Mapping[str, type[Any]]) -> Kind | None:
    """Return the kind of a type; None if the type says nothing that can be checked."""
    origin = get_origin(hint)
    if origin is Annotated:
        return next((each for each in hint.__metadata__ if isinstance(each, Kind)), None)
    if origin is Literal:
        return word_of(get_args(hint))
    if origin in _UNIONS:
        members = [each for each in get_args(hint) if each is not NoneType]
        if len(members) == 1:
            return _kind_of(members[0], names)
        classes = [_class_of(each, names) for each in members]
        return None if None in classes else one_of([each for each in classes if each is not None])
    one = _class_of(hint, names)
    return None if one is None else instance_of(one)


def _class_of(hint: Any, names: Mapping[str, type[Any]]) -> type[Any] | None:
    """Return the class of a type whose instances can be recognized; None if they cannot."""
    if isinstance(hint, ForwardRef):
        return names.get(hint.__forward_arg__)
    one = get_origin(hint) or hint
    is_open = one in (object, Any) or getattr(one, "_is_protocol", False)
    return one if isinstance(one, type) and not is_open else None
