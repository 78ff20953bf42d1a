"""spring-jms and Camel on a Premium namespace, spring-messaging-azure-servicebus and rhea on a Standard one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.stage.serving import ServingThread, serving
from tests.wire.programs import cache_of, check_lines, fetch, run_program
from tests.wire.programs.java_programs import connection_string, run_java
from tests.wire.programs.test_jms import ADDRESS, premium

NODE = Path(__file__).parent / "node"


def test_spring_jms_and_camel_work_on_premium(thread: ServingThread) -> None:
    address = f"amqp://{ADDRESS}:5671?jms.prefetchPolicy.all=0"
    with premium(thread) as emulator:
        lines = run_java("Frameworks", "frameworks", [address], emulator, thread, address=ADDRESS)
        check_lines([line for line in lines if line.startswith(("ok ", "failed "))], ("spring", "camel"))
        assert "topic/Subscriptions/copies$camel$D" in [
            entity.path for entity in emulator.context().host.namespace.directory.all()
        ]


def test_spring_messaging_gets_each_message(thread: ServingThread) -> None:
    with premium(thread, "std-2021") as emulator:
        lines = run_java("SpringAzure", "spring", [connection_string()], emulator, thread, address=ADDRESS)
        check_lines([line for line in lines if line.startswith(("ok ", "failed "))], ("messages",))


def test_rhea_settles_and_uses_sessions(thread: ServingThread) -> None:
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    root = cache_of("rhea")
    if not (root / "node_modules" / "rhea").is_dir():
        shutil.copy(NODE / "package.json", root)
        fetch(["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"], root, for_what="rhea")
    with serving(thread) as emulator:
        emulator.create_queue("queue")
        emulator.create_queue("sessions", requires_session=True)
        command = ["node", str(NODE / "rhea.js"), "127.0.0.1", str(emulator.ports["contoso"])]
        lines = run_program(command, emulator, thread, {"NODE_PATH": str(root / "node_modules")})
        check_lines(lines, ("outcomes", "dead-letter", "session"))
