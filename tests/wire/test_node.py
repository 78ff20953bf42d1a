"""@azure/service-bus, the JavaScript client, where there is Node and npm can fetch it.

The packages are kept outside the tree, in the user's cache, and fetched once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.wire.serving import ServedNamespace

pytestmark = pytest.mark.timeout(240)  # the first test may install packages, and runs all checks

HERE = Path(__file__).parent / "node"
CHECKS = ("settlements", "bodies", "schedule", "sessions", "rules", "deletes", "subscribe", "refusals")
INSTALL_S = 120.0
RUN_S = 90.0


@pytest.fixture(scope="module")
def packages() -> Path:
    """Where the client is installed."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sbclient-wire-tests"
    if not (root / "node_modules" / "@azure" / "service-bus").is_dir():
        root.mkdir(parents=True, exist_ok=True)
        shutil.copy(HERE / "package.json", root)
        command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"]
        try:
            done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=INSTALL_S, check=False)
        except subprocess.TimeoutExpired:
            pytest.skip(f"npm did not fetch @azure/service-bus in {INSTALL_S:.0f} s")
        if done.returncode:
            pytest.skip(f"npm could not fetch @azure/service-bus: {done.stderr.strip()[-200:]}")
    return root


@pytest.fixture(scope="module")
def lines(packages: Path, namespace: ServedNamespace) -> list[str]:
    """What the checks print."""
    for name in ("queue", "bodies", "schedule", "delete", "subscribe"):
        namespace.queue(f"node-{name}")
    namespace.queue("node-sessions", requires_session=True)
    namespace.topic("node-topic", "s")
    done = subprocess.run(
        ["node", str(HERE / "checks.js"), namespace.connection_string],
        env={**os.environ, "NODE_PATH": str(packages / "node_modules")},
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("name", CHECKS)
def test_node(name: str, lines: list[str]) -> None:
    (line,) = [line for line in lines if line.split()[1] == name]
    assert line == f"ok {name}", line.replace(" | ", "\n")
