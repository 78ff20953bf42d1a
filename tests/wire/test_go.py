"""azservicebus, the Go client with its administration client, where there is Go and it can fetch the package."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stage.serving import ServingThread, serving
from tests.wire.programs import MODES, build_go, check_lines, run_program

HERE = Path(__file__).parent / "go"
CHECKS = ("settlements", "scheduling", "sessions", "administration", "refusals", "outage")


@pytest.fixture(scope="module")
def program() -> Path:
    """The built program."""
    return build_go(HERE, for_what="azservicebus")


@pytest.mark.parametrize("mode", MODES)
def test_go(mode: str, program: Path, thread: ServingThread) -> None:
    with serving(thread) as emulator:
        address = f"localhost:{emulator.ports['contoso']}"
        command = [str(program), emulator.connection_string, address, mode, str(emulator.certificate_path)]
        check_lines(run_program(command, emulator, thread), CHECKS)
