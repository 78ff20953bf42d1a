"""@azure/service-bus, the JavaScript client, where there is Node and npm can fetch it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.stage.serving import ServingThread, serving
from tests.wire.programs import MODES, cache_of, check_lines, fetch, run_program

HERE = Path(__file__).parent / "node"
CHECKS = (
    *("settlements", "bodies", "schedule", "sessions", "rules", "deletes", "subscribe", "properties"),
    *("administration", "refusals", "outage", "peeks", "batches", "waits", "lockLost", "renewal", "sessionLockLost"),
    *(
        "deferred",
        "backup",
        "unlocked",
        "failingHandler",
        "manualCompletion",
        "sessionReceivers",
        "sessionStream",
        "wrongReceivers",
    ),
    *("filters", "annotated", "lives", "duplicates", "forwarding", "disabled", "queueSettings", "topicSettings"),
    *("pages", "counts", "scheduling", "deletion", "closing"),
)


@pytest.fixture(scope="module")
def packages() -> Path:
    """The directory of the installed packages."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    root = cache_of("node")
    wanted = HERE / "package.json"
    installed = root / "package.json"
    is_there = all((root / "node_modules" / name).is_dir() for name in ("@azure/service-bus", "ws"))
    if not (is_there and installed.read_bytes() == wanted.read_bytes()):
        shutil.copy(wanted, root)
        fetch(["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"], root, for_what="@azure/service-bus")
    return root / "node_modules"


@pytest.mark.parametrize("mode", MODES)
def test_node(mode: str, packages: Path, thread: ServingThread) -> None:
    with serving(thread) as emulator:
        address = f"localhost:{emulator.ports['contoso']}"
        command = ["node", str(HERE / "checks.js"), emulator.connection_string, address, mode]
        env = {"NODE_PATH": str(packages), "NODE_EXTRA_CA_CERTS": str(emulator.certificate_path)}
        check_lines(run_program(command, emulator, thread, env), CHECKS)
