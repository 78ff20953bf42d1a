"""A namespace as a process of its own: `sbclient emulator`, and its control API."""

from __future__ import annotations

import asyncio
import json
import signal
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from sbclient import ServiceBusClient
from sbclient.emulator.sas import ROOT_KEY, ROOT_KEY_NAME
from sbclient.rules.shared_access_signature import sign
from tests.commands import SBCLIENT
from tests.stage.programs import Program, until

READY_S: Final = 60.0
"""How long a program may take to be ready: on a loaded machine, many times what it needs."""

ANSWER_S: Final = 30.0
FOREVER: Final = 4_000_000_000.0


def connection_string(port: int) -> str:
    """How to reach a namespace, or a proxy to one, at a port of this machine."""
    return (
        f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName={ROOT_KEY_NAME};SharedAccessKey={ROOT_KEY};"
        "UseDevelopmentEmulator=true;"
    )


class Namespace(Program):
    """One emulated namespace.

    Args:
        options: of `sbclient emulator`.

    Attributes:
        port: where it listens, once it is ready; the same in every life.
    """

    def __init__(self, name: str, folder: Path, *, options: Sequence[str] = ()) -> None:
        super().__init__(name, folder)
        self._options = options
        self._http_port = 0
        self.port = 0

    async def begin(self) -> None:
        """Start and wait until it is ready."""
        where = ["--namespace", f"{self.name}:{self.port}", "--http-port", "0", "--json"]
        self.start([*SBCLIENT, "emulator", *where, *self._options])
        out = self.file("out")
        await until(lambda: not self.is_running or out.read_text().endswith("\n"), READY_S)
        said = out.read_text()
        assert said.endswith("\n"), f"the namespace {self.name} is not ready, its status {self.status}: {self.output()}"
        ready = json.loads(said)
        self.port, self._http_port = ready["ports"][self.name], ready["http_port"]

    @property
    def connection_string(self) -> str:
        return connection_string(self.port)

    def client(self) -> ServiceBusClient:
        """A client that takes none of the proxies."""
        return ServiceBusClient.from_connection_string(self.connection_string)

    async def hurt(self, how: str) -> None:
        """`"frozen"`, or the name of a fault of the wire."""
        if how == "frozen":
            self.signal(signal.SIGSTOP)
        else:
            await self.control("POST", "faults", {"kind": how})

    async def heal(self, how: str) -> None:
        if how == "frozen":
            self.signal(signal.SIGCONT)
        else:
            await self.control("DELETE", "faults")

    async def reset(self) -> None:
        """Make it as new."""
        await self.heal("frozen")
        await self.control("POST", "reset")

    async def control(self, method: str, what: str, said: Any = None) -> Any:
        """Call the control API at the port that wire faults do not affect."""
        return await asyncio.to_thread(self._control, method, what, said)

    def _control(self, method: str, what: str, said: Any) -> Any:
        address = f"http://127.0.0.1:{self._http_port}/$control/{what}"
        body = None if said is None else json.dumps(said).encode()
        token = sign(f"http://127.0.0.1:{self._http_port}", ROOT_KEY_NAME, ROOT_KEY, FOREVER)
        request = urllib.request.Request(address, body, {"Authorization": token}, method=method)
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            return json.load(answer)
