"""azure-messaging-servicebus, the Java client, run against an emulator; `python -m tests.wire.java_client [CHECK...]`.

Maven fetches the client once, to the user's cache outside the tree.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final

from sbclient.emulator import Emulator
from tests.stage.serving import ServingThread, serving
from tests.wire.maven import cache, check_installed, jars_of
from tests.wire.programs import MODES, RUN_S, run_program

HERE: Final = Path(__file__).parent / "java"
CHECKS: Final = (
    *("messages", "processor", "refusals", "sessions", "one-entity", "schedule", "two-entities", "subscription"),
    *("partitioned", "second-receiver", "rules", "administration", "outage"),
)
PASSWORD: Final = "changeit"
"""Of the trust store, which holds only the public certificate of the emulator."""


def installed(*, may_fetch: bool) -> Path:
    """Return the folder with the client and the compiled checks.

    Args:
        may_fetch: whether Maven may download the client; otherwise it must be in the local Maven repository.

    Raises:
        NotInstalledError: Java, Maven or the client is missing.
    """
    check_installed("java", "javac", "keytool", "mvn")
    sources = (HERE / "pom.xml").read_bytes(), (HERE / "Checks.java").read_bytes()
    jars = jars_of(HERE / "pom.xml", proof="java", may_fetch=may_fetch)
    classes = cache() / sha256(b"".join(sources)).hexdigest()[:16] / "classes"
    if not classes.is_dir():
        with tempfile.TemporaryDirectory(dir=cache()) as folder:
            command = ["javac", "-d", folder, "-cp", f"{jars}/*", str(HERE / "Checks.java")]
            subprocess.run(command, check=True, timeout=RUN_S)
            shutil.copytree(folder, classes, dirs_exist_ok=True)
    return _linked(classes, jars)


def _linked(classes: Path, jars: Path) -> Path:
    """Return the folder of the classes, with a link to the jars beside it."""
    link = classes.parent / "jars"
    if not link.exists():
        link.symlink_to(jars)
    return classes.parent


def make_entities(emulator: Emulator) -> None:
    """Create the entities that the checks use."""
    for name in ("messages", "one", "schedule", "in", "out", "outage"):
        emulator.create_queue(f"java-{name}")
    emulator.create_queue("java-sessions", requires_session=True)
    emulator.create_queue("java-partitioned", enable_partitioning=True)
    for name in ("java-topic", "java-rules"):
        emulator.create_topic(name)
        emulator.create_subscription(name, "s")


def run(folder: Path, mode: str, thread: ServingThread, checks: Iterable[str] = CHECKS) -> list[str]:
    """Run checks, all by default, and return one line for each: `ok <check>` or `failed <check> <why>`.

    Args:
        folder: see `installed`.
        mode: how the client connects: plain, tls or websocket.
        thread: serves the emulator.
    """
    with serving(thread) as emulator, tempfile.TemporaryDirectory() as scratch:
        make_entities(emulator)
        store = f"{scratch}/trust.p12"
        imported = ["keytool", "-importcert", "-noprompt", "-alias", "emulator"]
        imported += ["-file", str(emulator.certificate_path), "-keystore", store, "-storepass", PASSWORD]
        subprocess.run(imported, check=True, capture_output=True, timeout=RUN_S)
        command = ["java", f"-Djavax.net.ssl.trustStore={store}", f"-Djavax.net.ssl.trustStorePassword={PASSWORD}"]
        command += ["-XX:TieredStopAtLevel=1", "-cp", f"{folder}/classes:{folder}/jars/*", "Checks"]
        port = str(emulator.ports["contoso"])
        address = emulator.connection_string.replace(f":{port}", "").replace("UseDevelopmentEmulator=true;", "")
        return run_program([*command, address.rstrip(";"), port, mode, *checks], emulator, thread)


def main(checks: Sequence[str]) -> int:
    """Run checks, all by default, in every mode; print their results, and return the exit status."""
    thread, folder, is_ok = ServingThread(), installed(may_fetch=True), True
    for mode in MODES:
        for line in run(folder, mode, thread, checks or CHECKS):
            is_ok = is_ok and line.startswith("ok ")
            sys.stdout.write(f"{mode}: {line}\n")
    return 0 if is_ok else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
