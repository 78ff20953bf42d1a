"""azservicebus, the Go client with its administration client, where there is Go and it can fetch the package."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.limit import HANG_S
from tests.wire.programs import MODES, cache_of, check_lines, fetch, run_program, served
from tests.wire.serving import ServingThread

HERE = Path(__file__).parent / "go"
CHECKS = ("settlements", "scheduling", "sessions", "administration", "refusals", "outage")


@pytest.fixture(scope="module")
def program() -> Path:
    """The built program."""
    if shutil.which("go") is None:
        pytest.skip("go is not installed")
    root = cache_of("go")
    for source in HERE.iterdir():
        if not (root / source.name).exists() or (root / source.name).read_bytes() != source.read_bytes():
            shutil.copy(source, root)
    fetch(["go", "mod", "download"], root, for_what="azservicebus")
    done = subprocess.run(
        ["go", "build", "-o", "checks", "."], cwd=root, capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return root / "checks"


@pytest.mark.parametrize("mode", MODES)
def test_go(mode: str, program: Path, thread: ServingThread) -> None:
    with served(thread) as emulator:
        address = f"localhost:{emulator.ports['contoso']}"
        command = [str(program), emulator.connection_string, address, mode, str(emulator.certificate_path)]
        check_lines(run_program(command, emulator, thread), CHECKS)
