"""azure-messaging-servicebus, the Java client, run against an emulator over TLS; `python -m tests.wire.java_client`.

Maven fetches the client once, to the user's cache outside the tree.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final

from sbclient.emulator import Emulator
from tests.wire.maven import cache, check_installed, jars_of

HERE: Final = Path(__file__).parent / "java"
RUN_S: Final = 120.0
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
    for name in ("messages", "one", "schedule", "in", "out"):
        emulator.create_queue(f"java-{name}")
    emulator.create_queue("java-sessions", requires_session=True)
    emulator.create_queue("java-partitioned", enable_partitioning=True)
    emulator.create_topic("java-topic")
    emulator.create_subscription("java-topic", "s")


async def run(folder: Path, checks: Iterable[str] = ()) -> list[str]:
    """Run checks, all by default, and return one line for each: `ok <check>` or `failed <check> <why>`.

    Args:
        folder: see `installed`.
    """
    async with Emulator("contoso") as emulator:
        make_entities(emulator)
        with tempfile.TemporaryDirectory() as scratch:
            store = f"{scratch}/trust.p12"
            imported = ["keytool", "-importcert", "-noprompt", "-alias", "emulator"]
            imported += ["-file", str(emulator.certificate_path), "-keystore", store, "-storepass", PASSWORD]
            await asyncio.to_thread(subprocess.run, imported, check=True, capture_output=True, timeout=RUN_S)
            command = ["java", f"-Djavax.net.ssl.trustStore={store}", f"-Djavax.net.ssl.trustStorePassword={PASSWORD}"]
            command += ["-XX:TieredStopAtLevel=1", "-cp", f"{folder}/classes:{folder}/jars/*", "Checks"]
            done = await asyncio.to_thread(
                subprocess.run,
                [*command, *_address(emulator.connection_string), *checks],
                capture_output=True,
                text=True,
                timeout=RUN_S,
            )
    if done.returncode:
        raise RuntimeError(f"java ended with status {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout.splitlines()


def _address(connection_string: str) -> tuple[str, str]:
    """The connection string for the Java client, and the port.

    The client takes the port from another option, and uses no TLS with `UseDevelopmentEmulator`.
    """
    port = re.search(r":(\d+)", connection_string)
    assert port is not None
    return connection_string.replace(port[0], "").replace("UseDevelopmentEmulator=true;", ""), port[1]


def main(checks: Sequence[str]) -> int:
    """Run checks, all by default, print their results, and return the exit status."""
    lines = asyncio.run(run(installed(may_fetch=True), checks))
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0 if lines and all(line.startswith("ok ") for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
