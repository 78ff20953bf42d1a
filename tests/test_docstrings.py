"""Everything that an application may use says what it is for, methods of the transports included."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import is_dataclass
from importlib import import_module
from types import ModuleType
from typing import Any, Final

import sbclient

MODULES: Final = [
    "administration",
    "backlog",
    "client.batch",
    "client.client",
    "client.lock_renewer",
    "client.receiver",
    "client.sender",
    "client.transaction",
    "delivery",
    "emulator.emulator",
    "entities",
    "errors",
    "message",
    "options",
    "pairing.pair",
    "pairing.status",
    "rules.connection_string",
    "rules.failover",
    "syphon.syphon",
    "testing",
    "testing.virtual_test",
    "testing.namespaces",
    "testing.served",
    "testing.virtual_loop",
    "transport.base",
    "transport.choice",
    "transport.memory.transport",
    "transport.sdk.administration",
    "transport.sdk.receiver",
    "transport.sdk.sender",
    "transport.sdk.transport",
]


def public(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """The classes and functions that a module itself defines, and what the classes define."""
    for name, value in vars(module).items():
        if name.startswith("_") or getattr(value, "__module__", None) != module.__name__:
            continue
        if inspect.isfunction(value):
            yield name, value
        elif inspect.isclass(value):
            yield name, value
            for member in vars(value):
                attribute = inspect.getattr_static(value, member)
                if (not member.startswith("_") and isinstance(attribute, property | classmethod | staticmethod)) or (
                    not member.startswith("_") and inspect.isfunction(attribute)
                ):
                    yield f"{name}.{member}", getattr(value, member)


def is_told(value: Any) -> bool:
    text = inspect.getdoc(value) or ""
    made_up = inspect.isclass(value) and is_dataclass(value) and text.startswith(f"{value.__name__}(")
    return bool(text.strip()) and not made_up


def test_what_is_public_has_a_docstring() -> None:
    for module in (import_module(f"sbclient.{name}") for name in MODULES):
        assert is_told(module), module
        assert [(module, each) for each, value in public(module) if not is_told(value)] == []


def test_every_name_of_the_package_is_looked_at() -> None:
    homes = {f"sbclient.{name}" for name in MODULES}
    assert {getattr(getattr(sbclient, name), "__module__", "sbclient.errors") for name in sbclient.__all__} <= homes
