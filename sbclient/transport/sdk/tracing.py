"""Keeps azure-servicebus from tracing what is traced by this package already.

Its tracing, where an application has switched it on, makes spans of its own for each call, and writes a context of its
own into messages. Under our senders and receivers that would show everything twice, each poll of the syphon included,
and overwrite the context that a message bears. An application that uses azure-servicebus itself is traced as ever.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Final

from sbclient.telemetry import tracing

_is_ours: Final[ContextVar[bool]] = ContextVar("what runs is traced by sbclient", default=False)


class _Settings:
    """The settings of azure-core as the tracing of azure-servicebus sees them."""

    def __init__(self, settings: Any) -> None:
        self._settings = settings

    def tracing_implementation(self) -> Any:
        return None if _is_ours.get() else self._settings.tracing_implementation()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._settings, name)


def silence() -> None:
    """Let azure-servicebus trace nothing in the running task, if it would and this package does."""
    if not tracing.is_on():
        return
    from azure.servicebus._common import tracing as module

    theirs: Any = module
    settings = getattr(theirs, "settings", None)
    if settings is None or settings.tracing_implementation() is None:
        return
    if not isinstance(settings, _Settings):
        theirs.settings = _Settings(settings)  # whom it asks whether to trace
    _is_ours.set(True)
