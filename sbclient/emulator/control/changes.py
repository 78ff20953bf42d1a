"""Faults and removed messages, by HTTP or by `Emulator`: each change is published, for the page and its subscribers."""

from __future__ import annotations

from collections.abc import Iterable

from sbclient import clock
from sbclient.emulator.context import AnyFault, NamespaceContext
from sbclient.emulator.control import message_store
from sbclient.emulator.control.fault_json import write_fault


def inject(context: NamespaceContext, fault: AnyFault) -> None:
    """Activate a fault of the broker or of the wire."""
    context.inject(fault)
    context.publish("fault.thrown", **write_fault(fault, clock.now()))


def heal(context: NamespaceContext, fault: AnyFault | None = None) -> None:
    """Heal one fault, or all of them."""
    context.heal(fault)
    if fault is None:
        context.publish("fault.all_healed")
    else:
        context.publish("fault.healed", **write_fault(fault, clock.now()))


def purge(context: NamespaceContext, path: str | None = None, numbers: Iterable[int] | None = None) -> int:
    """Remove messages; see `message_store.purge`."""
    count = message_store.purge(context.host.namespace, clock.now(), path, numbers)
    context.publish("namespace.purged", path=path, count=count)
    return count
