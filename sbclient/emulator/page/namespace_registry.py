"""The namespaces that are served together: the control API of each, and what is asked about all of them at once."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from sbclient.emulator.context import NamespaceContext

if TYPE_CHECKING:
    from sbclient.emulator.control.api import ControlApi
    from sbclient.emulator.page.namespace_watcher import ClientReport
    from sbclient.emulator.page.watch_api import WatchApi


class RegisteredNamespace(NamedTuple):
    """One of them, and what makes it as it was at the start."""

    context: NamespaceContext
    reset: Callable[[], None]


class NamespaceRegistry:
    """All namespaces of one emulator.

    Args:
        own_names: by which browsers may call it, besides those that are always this machine.
        tell: what a program that holds the clients has to add to what is seen; None = nothing.
        interval_s: between two looks at everything, for those who watch; None = the usual.

    Attributes:
        ports: of those namespaces that have one.
        http_port: the one that stands outside of all faults; None = there is none.
    """

    def __init__(
        self,
        own_names: Collection[str] = (),
        *,
        tell: Callable[[], ClientReport] | None = None,
        interval_s: float | None = None,
    ) -> None:
        self.own_names = own_names
        self.ports: dict[str, int] = {}
        self.http_port: int | None = None
        self._tell = tell
        self._interval_s = interval_s
        self._registry: dict[str, RegisteredNamespace] = {}

    def add(self, context: NamespaceContext, reset: Callable[[], None]) -> None:
        """One more; before anybody asks for anything."""
        self._registry[context.name] = RegisteredNamespace(context, reset)

    @property
    def contexts(self) -> dict[str, NamespaceContext]:
        return {name: each.context for name, each in self._registry.items()}

    # The control API is loaded when somebody first asks for it: who only wants AMQP does not wait for it.

    @cached_property
    def controls(self) -> dict[str, ControlApi]:
        from sbclient.emulator.control.api import ControlApi

        return {name: ControlApi(each.context, each.reset) for name, each in self._registry.items()}

    @cached_property
    def watch(self) -> WatchApi:
        from sbclient.emulator.page.namespace_watcher import INTERVAL_S, NO_REPORT, NamespaceWatcher
        from sbclient.emulator.page.watch_api import WatchApi

        namespace_watcher = NamespaceWatcher(
            self.controls,
            ports=self.ports,
            tell=self._tell or (lambda: NO_REPORT),
            interval_s=self._interval_s or INTERVAL_S,
        )
        return WatchApi(self.controls, namespace_watcher, self._about)

    def _about(self) -> dict[str, Any]:
        return {"http_port": self.http_port, "ports": self.ports}
