"""An emulator at the host name and at the ports of Azure, as a process, for programs that know only a host name.

`docs/emulator.md` has the recipe; what it asks of a machine is here done for one process: the hosts entry by a module
that Python imports at its start, the trusted certificate by a copy of certifi.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from sbclient.emulator.sas import ROOT_KEY
from tests.commands import SBCLIENT
from tests.stage.namespaces import READY_S
from tests.stage.programs import Program, until
from tests.wire.programs import cache_of
from tests.wire.python_samples import NotFetchedError, install, trust

NAME: Final = "contoso.servicebus.windows.net"
CONNECTION_STRING: Final = (
    f"Endpoint=sb://{NAME}/;SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey={ROOT_KEY}"
)
PACKAGES: Final = ("celery==5.7.0", "boilermaker-servicebus==1.4.1", "faststream-azure-servicebus==0.2.1", "aiohttp")
HOSTS: Final = """
import socket
of_system = socket.getaddrinfo
socket.getaddrinfo = lambda host, *rest, **named: of_system("{address}" if host == "{name}" else host, *rest, **named)
"""


def packages() -> Path:
    """Return the folder of the Python programs, which pip fetches once to the user's cache."""
    folder = cache_of("programs") / "packages"
    try:
        return install(folder, *PACKAGES)
    except NotFetchedError as error:
        pytest.skip(str(error))


def moved(names: Sequence[str], into: Path) -> int:
    """Copy programs that use azure-servicebus into a folder, and let them import sbclient; returns the edited lines."""
    edited = 0
    for name in names:
        for path in sorted((packages() / name).rglob("*.py")):
            lines = path.read_text().splitlines(keepends=True)
            changed = [re.sub(r"^(\s*(?:from|import) )azure\.servicebus\b", r"\1sbclient", line) for line in lines]
            edited += sum(old != new for old, new in zip(lines, changed, strict=True))
            copy = into / path.relative_to(packages())
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text("".join(changed))
    return edited


class AzureHost(Program):
    """One namespace, with a data directory, in a process that can be killed.

    Args:
        folder: an empty folder for the data and the modules.
        address: a loopback address that only one test uses.
        options: further options of `sbclient emulator`.
    """

    def __init__(self, folder: Path, address: str, *options: str) -> None:
        super().__init__("contoso", folder)
        self.address = address
        self._options = options
        self.facts: dict[str, Any] = {}

    async def begin(self) -> None:
        """Start it, and wait until it listens. Skips the test if this user may not use the ports."""
        where = ["--namespace", "contoso:5671,443", "--tls-name", NAME, "--host", self.address, "--http-port", "0"]
        options = ["--data", str(self.folder / "data"), "--auth", "jwt-any", "--json", *self._options]
        self.start([*SBCLIENT, "emulator", *where, *options])
        out = self.file("out")
        await until(lambda: not self.is_running or out.read_text().endswith("\n"), READY_S)
        if not self.is_running:
            is_refused = "Permission" in self.output() or "cannot listen on" in self.output()
            (pytest.skip if is_refused else pytest.fail)(self.output())
        self.facts = json.loads(out.read_text())
        assert await until(self.certificate.exists, READY_S), self.output()

    @property
    def certificate(self) -> Path:
        """What clients must trust."""
        return Path(self.facts["certificate"])

    def python_environment(self, *python_path: Path) -> dict[str, str]:
        """Return the environment of a Python program."""
        modules = self.folder / "modules"
        if not modules.exists():
            modules.mkdir()
            trust(modules, self.certificate)
            (modules / "sitecustomize.py").write_text(HOSTS.format(address=self.address, name=NAME))
        bundle = str(modules / "certifi" / "cacert.pem")
        path = os.pathsep.join(map(str, (modules, *python_path, packages())))
        return {**os.environ, "PYTHONPATH": path, "REQUESTS_CA_BUNDLE": bundle, "SSL_CERT_FILE": bundle}
