"""Java programs, compiled with libraries from Maven, and run against an emulator at the name of Azure."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

from sbclient.emulator import Emulator
from sbclient.emulator.sas import ROOT_KEY
from tests.stage.serving import ServingThread
from tests.wire.maven import NotInstalledError, check_installed, jars_of
from tests.wire.programs import RUN_S, run_program
from tests.wire.programs.azure_host import NAME

JAVA: Final = Path(__file__).parent / "java"
PASSWORD: Final = "changeit"
"""Of the trust store, which holds only the public certificate of the emulator."""


def run_java(
    program: str,
    library: str,
    arguments: Sequence[str],
    emulator: Emulator,
    thread: ServingThread,
    *,
    address: str,
    replace: Mapping[str, str] = {},
) -> list[str]:
    """Compile and run a program; returns its lines. Skips the test if Java, Maven or a library is missing.

    Args:
        program: the name of its class, which may use other classes of the folder.
        library: the folder of its `pom.xml`.
        address: of the emulator, to which the name of Azure leads.
        replace: texts of the sources.
    """
    try:
        check_installed("java", "javac", "keytool", "mvn")
        jars = jars_of(JAVA / library / "pom.xml", proof="programs", may_fetch=True)
    except NotInstalledError as error:
        pytest.skip(str(error))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path in JAVA.glob("*.java"):
            source = path.read_text()
            for old, new in replace.items():
                source = source.replace(old, new)
            (folder / path.name).write_text(source)
        command = ["javac", "-nowarn", "-d", name, "-cp", f"{name}:{jars}/*", str(folder / f"{program}.java")]
        subprocess.run(command, check=True, capture_output=True, timeout=RUN_S)
        (folder / "hosts").write_text(f"{address} {NAME}\n")
        imported = ["keytool", "-importcert", "-noprompt", "-alias", "emulator", "-storepass", PASSWORD]
        imported += ["-file", str(emulator.certificate_path), "-keystore", f"{name}/trust"]
        subprocess.run(imported, check=True, capture_output=True, timeout=RUN_S)
        command = ["java", f"-Djdk.net.hosts.file={name}/hosts", f"-Djavax.net.ssl.trustStore={name}/trust"]
        command += [f"-Djavax.net.ssl.trustStorePassword={PASSWORD}", "-XX:TieredStopAtLevel=1"]
        return run_program([*command, "-cp", f"{name}:{jars}/*", program, *arguments], emulator, thread)


def connection_string() -> str:
    """How programs reach the emulator by the name of Azure."""
    return f"Endpoint=sb://{NAME}/;SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey={ROOT_KEY}"
