"""The broker over the network: AMQP 1.0, the management API, the control API and a page on one port per namespace."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sbclient.emulator.emulator import Emulator

__all__ = ["Emulator"]


def __getattr__(name: str) -> Any:
    """Import the emulator at the first access: a worker uses only `net`."""
    if name != "Emulator":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sbclient.emulator.emulator import Emulator

    return Emulator
