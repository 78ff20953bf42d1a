"""The control API for tests, which call it with JSON, and messages for it."""

from __future__ import annotations

import json
from typing import Any

from sbclient.emulator.context import NamespaceContext
from sbclient.emulator.control.api import ControlApi
from tests.emulator.requests import request


class Control:
    """The control API of a namespace.

    Attributes:
        api: the API itself.
        reset_count: how often it has reset the namespace.
    """

    def __init__(self, context: NamespaceContext) -> None:
        self.reset_count = 0
        self.api = ControlApi(context, self._reset)

    def _reset(self) -> None:
        self.reset_count += 1

    async def ask(self, method: str, target: str, said: Any = None, *, status: int = 200) -> Any:
        """Send a request, check the status, and return the answer."""
        body = b"" if said is None else json.dumps(said).encode()
        answer = await self.api.answer(request(method, f"/$control/{target}", body))
        assert answer.status == status, answer.body
        return json.loads(answer.body)

    async def send(self, said: Any, *, entity: str = "orders", status: int = 200) -> Any:
        """Send messages through the API."""
        return await self.ask("POST", f"messages?entity={entity}", said, status=status)
