"""Programs in Go, which fetches them. They use only TLS."""

from __future__ import annotations

from pathlib import Path

from sbclient.emulator import Emulator
from sbclient.emulator.sas import ROOT_KEY_NAME
from tests.wire.programs import build_go, check_lines, run_program, served
from tests.wire.serving import ServingThread

GO = Path(__file__).parent / "go"


def _checked(program: Path, checks: tuple[str, ...], emulator: Emulator, thread: ServingThread) -> None:
    address = f"sb://localhost:{emulator.ports['contoso']}/"
    string = f"Endpoint={address};SharedAccessKeyName={ROOT_KEY_NAME};SharedAccessKey={emulator.root_key()}"
    trusted = {"SSL_CERT_FILE": str(emulator.certificate_path)}
    check_lines(run_program([str(program), string], emulator, thread, trusted), checks)


def test_dapr_retries_and_leaves_dead_letters(thread: ServingThread) -> None:
    program = build_go(GO / "dapr", for_what="Dapr's components")
    with served(thread) as emulator:
        _checked(program, ("queue", "topic"), emulator, thread)
        entities = emulator.context().host.namespace.directory.all()
        stored = {queue.path: sum(map(len, queue.fragments)) for entity in entities for queue in entity.queues()}
        assert {path: count for path, count in stored.items() if count} == {
            "events/Subscriptions/worker/$DeadLetterQueue": 2
        }
