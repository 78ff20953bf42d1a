"""The tests of azure-servicebus, by its authors, run against an emulator.

    python -m tests.wire.python_suite [FILE...]

pip fetches the source distribution of the installed version, which has the tests. They are not changed;
`tests.wire.python_suite_plugin` replaces what they expect of Azure. Most of them wait for locks to expire, so there are
more workers than processors.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

import pytest

from sbclient.emulator import Emulator
from sbclient.emulator.sas import ROOT_KEY, ROOT_KEY_NAME
from tests.wire.python_samples import NotFetchedError, fetched, trust

WORKERS: Final = 12
TEST_S: Final = 600
"""In the test of large messages the client waits for itself: it reads for 60 s at a time, and sends only in between."""

ALONE: Final = "test_queue_receive_handler_with_autolockrenew_many_msgs"
"""This test runs after the others: the client renews 300 locks one by one, and needs a processor for it."""

DOMAIN: Final = ".servicebus.windows.net"
PORTS: Final = "PYTHON_SUITE_PORTS"
"""The environment variable with the port of each worker."""

RULES: Final[Mapping[str, tuple[str, Sequence[str]]]] = {
    ROOT_KEY_NAME: (ROOT_KEY, ("Manage", "Send", "Listen")),
    "sending": ("c2VuZGluZyBpcyBhbGxvd2VkIGJ5IHRoaXMga2V5Li4=", ("Send",)),
    "listening": ("bGlzdGVuaW5nIGlzIGFsbG93ZWQgYnkgdGhpcyBrZXk=", ("Listen",)),
}
"""Authorization rules of every namespace: the key and the rights of each."""

KNOWN: Final[Mapping[str, Sequence[str]]] = {
    "replaces a method of the client by one without an argument that the client passes": (
        "async_tests/test_queues_async.py::test_async_queue_operation_negative",
        "test_queues.py::test_queue_operation_negative",
    ),
    "expects that a receive call for 5 s waits longer for a session, as the client did before 7.15": (
        "async_tests/test_sessions_async.py::test_async_next_available_session_timeout_value",
        "test_sessions.py::test_next_available_session_timeout_value",
    ),
    "expects no x-opt-enqueue-sequence-number on messages of a plain queue, which a trace of the service shows": (
        "test_message.py::test_message_backcompat_peek_lock_databody",
        "test_message.py::test_message_backcompat_receive_and_delete_databody",
    ),
    "compares files of a checkout of azure-sdk-for-python": (
        "unittests/test_pyamqp_decode.py::test_pyamqp_copies_are_byte_identical",
    ),
}
"""Why tests fail, and which, as `file::test`."""


async def run_suite(
    tests: Path, packages: Path, files: Sequence[str], report: Path, *, chosen: str, workers: int = WORKERS
) -> int:
    """Run the tests in files, all by default, write the results as JUnit XML to `report`, return pytest's status.

    Args:
        chosen: which tests of the files, as pytest's `-k`.
    """
    rules = [{"KeyName": name, "PrimaryKey": key, "Rights": rights} for name, (key, rights) in RULES.items()]
    names = [f"worker{number}" for number in range(workers)]
    hosts = [f"{name}{DOMAIN}" for name in names]
    namespaces = [{"Name": name, "AuthorizationRules": rules} for name in names]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "Config.json"
        config.write_text(json.dumps({"UserConfig": {"Namespaces": namespaces}}))
        async with Emulator(config=config, auth="jwt-any", certificate_names=hosts) as emulator:
            trust(Path(folder), emulator.certificate_path)
            bundle = f"{folder}/certifi/cacert.pem"
            environment = {
                **{name: value for name, value in os.environ.items() if not name.startswith(("AZURE_", "SERVICEBUS_"))},
                PORTS: json.dumps([emulator.ports[name] for name in names]),
                "PYTHONPATH": f"{folder}:{packages}:{Path(__file__).parents[2]}",
                "PYTHONDONTWRITEBYTECODE": "1",
                "REQUESTS_CA_BUNDLE": bundle,
                "SSL_CERT_FILE": bundle,
            }
            command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=short"]
            command += ["--show-capture=no", "-c", os.devnull, "--rootdir", str(tests), "-p", "no:cacheprovider"]
            command += ["-o", "asyncio_default_fixture_loop_scope=function", "-p", "tests.wire.python_suite_plugin"]
            command += ["-n", str(workers), "-k", chosen, f"--timeout={TEST_S}", f"--junitxml={report}"]
            process = await asyncio.create_subprocess_exec(
                *command, *(files or ["."]), cwd=tests, env=environment, stdin=asyncio.subprocess.DEVNULL
            )
            try:
                return await process.wait()
            finally:
                if process.returncode is None:
                    process.terminate()
                    await process.wait()


def judge(reports: Sequence[Path], known: Mapping[str, Sequence[str]] = KNOWN) -> tuple[list[str], bool]:
    """Return a table of the results of each file, then what failed and why, and whether all is as `known` states."""
    reasons = {test: reason for reason, tests in known.items() for test in tests}
    counts: dict[str, Counter[str]] = {}
    lines, is_as_known = [], True
    for case in chain.from_iterable(ElementTree.parse(report).iter("testcase") for report in reports):
        file = case.get("classname", "").split(".Test")[0].replace(".", "/") + ".py"
        test = f"{file}::{case.get('name', '').partition('[')[0]}"
        bad = next((each for each in case if each.tag in ("failure", "error")), None)
        outcome = "failed" if bad is not None else "skipped" if case.find("skipped") is not None else "passed"
        counts.setdefault(file, Counter())[outcome] += 1
        if bad is not None:
            lines.append(f"failed: {test}: {reasons.get(test) or bad.get('message', '')[:300]}")
        if (bad is not None) != (test in reasons) and outcome != "skipped":
            is_as_known = False
            lines.append(f"not as listed in KNOWN: {test} {outcome}")
    total = sum(counts.values(), Counter[str]())
    table = [f"{'file':<55}{'tests':>8}{'passed':>8}{'failed':>8}{'skipped':>8}"]
    for file, found in [*sorted(counts.items()), ("total", total)]:
        numbers = (found.total(), found["passed"], found["failed"], found["skipped"])
        table.append(f"{file:<55}" + "".join(f"{number:>8}" for number in numbers))
    return table + lines, is_as_known and bool(counts)


def main(files: Sequence[str]) -> int:
    """Run the tests in files, all by default, print a table, and return the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        reports = [Path(folder) / "together.xml", Path(folder) / "alone.xml"]
        try:
            suite = fetched("tests")
        except NotFetchedError as error:
            sys.stdout.write(f"not run: {error}\n")
            return 1
        together = asyncio.run(run_suite(*suite, files, reports[0], chosen=f"not {ALONE}"))
        alone = asyncio.run(run_suite(*suite, files, reports[1], chosen=ALONE, workers=1))
        ended = {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED}
        if not {together, alone} <= ended:
            sys.stdout.write(f"pytest ended with status {together}, and {alone} for the test that runs alone\n")
            return 1
        lines, is_as_known = judge(reports)
    sys.stdout.write(f"azure-servicebus {version('azure-servicebus')}\n")
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return int(not is_as_known)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
