"""The namespaces of one emulator: the control API of each, and the requests about all of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from sbclient.emulator.context import NamespaceContext

if TYPE_CHECKING:
    from sbclient.emulator.control.api import ControlApi
    from sbclient.emulator.page.namespace_watcher import ClientReport
    from sbclient.emulator.page.watch_api import WatchApi


class RegisteredNamespace(NamedTuple):
    """A namespace, and the function that restores its start."""

    context: NamespaceContext
    reset: Callable[[], None]


class NamespaceRegistry:
    """All namespaces of one emulator.

    Args:
        report: returns what a program that owns the clients adds to a snapshot; None = nothing.
        interval_s: between two snapshots; None = the default.

    Attributes:
        ports: of the namespaces that have one.
        http_port: the port that faults do not affect; None = there is none.
    """

    def __init__(
        self,
        *,
        report: Callable[[], ClientReport] | None = None,
        interval_s: float | None = None,
    ) -> None:
        self.ports: dict[str, int] = {}
        self.http_port: int | None = None
        self._report = report
        self._interval_s = interval_s
        self._namespaces: dict[str, RegisteredNamespace] = {}

    def add(self, context: NamespaceContext, reset: Callable[[], None]) -> None:
        """Add a namespace, before the first request."""
        self._namespaces[context.name] = RegisteredNamespace(context, reset)

    @property
    def contexts(self) -> dict[str, NamespaceContext]:
        return {name: each.context for name, each in self._namespaces.items()}

    # The control API is imported late, so that AMQP clients do not wait for it.

    @cached_property
    def controls(self) -> dict[str, ControlApi]:
        from sbclient.emulator.control.api import ControlApi

        return {name: ControlApi(each.context, each.reset) for name, each in self._namespaces.items()}

    @cached_property
    def watch(self) -> WatchApi:
        from sbclient.emulator.page.namespace_watcher import INTERVAL_S, NO_REPORT, NamespaceWatcher
        from sbclient.emulator.page.watch_api import WatchApi

        watcher = NamespaceWatcher(
            self.controls,
            ports=self.ports,
            report=self._report or (lambda: NO_REPORT),
            interval_s=self._interval_s or INTERVAL_S,
        )
        return WatchApi(self.controls, watcher, self._about)

    def _about(self) -> dict[str, Any]:
        return {"http_port": self.http_port, "ports": self.ports}
