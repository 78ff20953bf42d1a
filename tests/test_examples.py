"""Each example runs as a newcomer would run it: alone, from its own process, in seconds, without a network."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

pytestmark = [
    pytest.mark.slow,
]

ROOT: Final = Path(__file__).parents[1]
HAS_SPARK: Final = find_spec("pyspark") is not None
EXAMPLES: Final = sorted((ROOT / "examples").glob("*.py"))
LEAST_EXAMPLES: Final = 3

QUICK_START: Final = {"SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""A Java that does not spend its time on making itself faster: an example ends before that pays."""

OFFLINE: Final = """
import runpy, sys
from tests.limit import HANG_S

LOCAL = {"localhost", "127.0.0.1", "::1", "0.0.0.0", "", None}

def refuse_the_network(event, args):
    if event == "socket.getaddrinfo":
        host = args[0]
    elif event == "socket.connect" and isinstance(args[1], tuple):
        host = args[1][0]
    else:
        return
    if isinstance(host, bytes):
        host = host.decode()
    if host not in LOCAL:
        raise RuntimeError(f"an example runs offline, but this one calls {host!r}")

sys.addaudithook(refuse_the_network)
path = sys.argv[1]
sys.argv = [path]
sys.path[0] = path.rpartition("/")[0]
runpy.run_path(path, run_name="__main__")
"""


def run_offline(path: Path) -> subprocess.CompletedProcess[str]:
    """Run one script; an environment that could name a real namespace is taken away."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SERVICEBUS_", "AZURE_"))}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", OFFLINE, str(path)],
        cwd=path.parent,
        env=environment | QUICK_START | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


def needs_spark(path: Path) -> bool:
    return "\nfrom pyspark" in path.read_text()


@pytest.fixture(scope="module")
def ends(request: pytest.FixtureRequest) -> Iterator[dict[Path, Future[subprocess.CompletedProcess[str]]]]:
    """How each example that is asked for ends. Two run at a time, first those that Spark keeps waiting."""
    asked = [item.callspec.params.get("path") for item in request.session.items if hasattr(item, "callspec")]
    with ThreadPoolExecutor(2) as pool:
        yield {
            path: pool.submit(run_offline, path)
            for path in sorted(EXAMPLES, key=needs_spark, reverse=True)
            if path in asked and (not needs_spark(path) or HAS_SPARK)
        }


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example_runs_offline_and_shows_something(
    ends: dict[Path, Future[subprocess.CompletedProcess[str]]], path: Path
) -> None:
    if path not in ends:
        pytest.skip("needs the extra `spark`")
    ended = ends[path].result()
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.strip(), f"{path.name} prints nothing: an example shows what it does"


def test_there_are_examples_as_soon_as_there_is_a_client() -> None:
    if (ROOT / "sbclient" / "client.py").exists():
        assert len(EXAMPLES) >= LEAST_EXAMPLES


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("raise SystemExit('it failed')", "it failed"),
        ("import socket; socket.socket().connect(('192.0.2.1', 5671))", "runs offline"),
        ("import socket; socket.getaddrinfo('contoso.servicebus.windows.net', 5671)", "runs offline"),
        ("import warnings; warnings.warn('old')", "UserWarning: old"),
    ],
)
def test_what_an_example_must_not_do_is_noticed(tmp_path: Path, source: str, complaint: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(source)
    ended = run_offline(script)
    assert ended.returncode != 0
    assert complaint in ended.stderr


def test_an_example_may_talk_to_a_server_of_its_own(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import socket\n"
        "with socket.create_server(('127.0.0.1', 0)) as server, socket.create_connection(server.getsockname()):\n"
        "    print('connected')\n"
    )
    ended = run_offline(script)
    assert (ended.returncode, ended.stdout) == (0, "connected\n")
