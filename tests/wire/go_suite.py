"""The tests of azservicebus, the Go client, run against an emulator: its own tests, not ours.

    python -m tests.wire.go_suite [PATTERN]

Go fetches the module and what its tests import. The tests are copied from the module cache and not changed; the
environment names the emulator, and an endpoint for tokens stands for the managed identity of a machine in Azure.
The client has no option for a port, so that 443 and 5671 of two loopback addresses must be free and may be used.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from sbclient.emulator import Emulator
from sbclient.emulator.sas import ROOT_KEY_NAME
from tests.wire.python_samples import answer_token, served

MODULE: Final = "github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
HOSTS: Final = ("127.0.0.2", "127.0.0.3")
"""Of the Standard and of the Premium namespace."""

SUITE_S: Final = 1_200.0
RIGHTS: Final = {"NoManage": ["Listen", "Send"], "SendOnly": ["Send"], "ListenOnly": ["Listen"]}
"""The keys of the Standard namespace besides the root key, as the template of the suite creates them."""

KNOWN: Final[Mapping[str, str]] = {
    "TestSender_SendAMQPMessageWithMultipleByteSlicesInData": (
        "expects no x-opt-enqueue-sequence-number, which a trace of the service shows: azure-service-bus-dotnet 484"
    ),
    **dict.fromkeys(
        (f"admin/TestAdminClient_{name}" for name in ("QueueWithMaxValues", "UpdateQueue", "UpdateTopic")),
        "expects no times of an authorization rule that was sent without them, against emulator.rule-times",
    ),
}
"""Tests that fail, and why."""

_OUTCOMES: Final = {"pass": "passed", "fail": "failed", "skip": "skipped"}


def copied(folder: Path) -> None:
    """Copy the module into a folder, from the cache of Go.

    Raises:
        CalledProcessError: Go could not fetch it.
    """
    shutil.copy(Path(__file__).parent / "go" / "go.mod", folder.parent)
    fetching = subprocess.run(
        ["go", "mod", "download", "-json", MODULE], cwd=folder.parent, capture_output=True, text=True, check=True
    )
    shutil.copytree(json.loads(fetching.stdout)["Dir"], folder, copy_function=shutil.copyfile)
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755)  # those of the cache cannot be written
    subprocess.run(["go", "mod", "download"], cwd=folder, capture_output=True, text=True, check=True)


@asynccontextmanager
async def namespaces(folder: Path) -> AsyncIterator[dict[str, str]]:
    """Serve both namespaces; yields the environment of the tests."""
    keys = {name: f"key-{name}" for name in RIGHTS}
    rules = [{"KeyName": name, "Rights": rights, "PrimaryKey": keys[name]} for name, rights in RIGHTS.items()]
    queues = [
        {"Name": name, "Properties": {"LockDuration": "PT5M", "RequiresSession": name.endswith("Sessions")}}
        for name in ("testQueue", "testQueueWithSessions")
    ]
    namespace = {"Name": "contoso", "AuthorizationRules": rules, "Queues": queues, "Topics": []}
    config = folder / "Config.json"
    config.write_text(json.dumps({"UserConfig": {"Namespaces": [namespace]}}))
    common: dict[str, Any] = {"first_port": 5671, "http_port": 443, "auth": "jwt-any", "certificate_names": HOSTS}
    async with AsyncExitStack() as stack:
        standard = await stack.enter_async_context(Emulator(config=config, host=HOSTS[0], **common))
        premium = await stack.enter_async_context(Emulator("premium", host=HOSTS[1], profile="prem-2021", **common))
        tokens = await stack.enter_async_context(served(answer_token))
        strings = {
            "": _connection_string(HOSTS[0], ROOT_KEY_NAME, standard.root_key()),
            "_PREMIUM": _connection_string(HOSTS[1], ROOT_KEY_NAME, premium.root_key()),
            "_NO_MANAGE": _connection_string(HOSTS[0], "NoManage", keys["NoManage"]),
            "_SEND_ONLY": _connection_string(HOSTS[0], "SendOnly", keys["SendOnly"]),
            "_LISTEN_ONLY": _connection_string(HOSTS[0], "ListenOnly", keys["ListenOnly"]),
        }
        yield {
            **{name: value for name, value in os.environ.items() if not name.startswith(("AZURE_", "SERVICEBUS_"))},
            **{f"SERVICEBUS_CONNECTION_STRING{suffix}": string for suffix, string in strings.items()},
            "SERVICEBUS_ENDPOINT": HOSTS[0],
            "SERVICEBUS_ENDPOINT_PREMIUM": HOSTS[1],
            "AZURE_RECORD_MODE": "live",
            "AZURE_TOKEN_CREDENTIALS": "ManagedIdentityCredential",
            "IDENTITY_ENDPOINT": f"http://127.0.0.1:{tokens}/",
            "IDENTITY_HEADER": "secret",
            "SSL_CERT_FILE": str(standard.certificate_path),
        }


def _connection_string(host: str, key_name: str, key: str) -> str:
    """One for TLS; that of the emulator has no TLS."""
    return f"Endpoint=sb://{host}/;SharedAccessKeyName={key_name};SharedAccessKey={key}"


async def run_suite(folder: Path, pattern: str) -> list[dict[str, Any]]:
    """Run the tests whose names match; returns the events of `go test`.

    Packages run one after the other, because the tests name queues after the second.
    """
    async with namespaces(folder.parent) as environment:
        process = await asyncio.create_subprocess_exec(
            *("go", "test", "-json", "-p", "1", "-count", "1", "-timeout", f"{SUITE_S:.0f}s", "-run", pattern, "./..."),
            cwd=folder,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            printed, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    return [json.loads(line) for line in printed.decode().splitlines() if line.startswith("{")]


def judge(events: Iterable[Mapping[str, Any]], known: Mapping[str, str] = KNOWN) -> tuple[list[str], bool]:
    """Return the failures with reasons and a line of counts, and whether all is as `known` states."""
    counts: Counter[str] = Counter()
    failed: set[str] = set()
    lines, is_as_known = [], True
    for event in events:
        outcome = _OUTCOMES.get(event["Action"])
        package, test = event.get("Package", "").removeprefix(MODULE).strip("/"), event.get("Test", "")
        name = f"{package}/{test}".lstrip("/")
        if outcome is None:
            continue
        if not test:  # the end of a package
            if outcome == "failed" and package not in failed:
                lines.append(f"package {package or '.'} failed without a failed test")
                is_as_known = False
            continue
        counts[outcome] += 1
        if "/" in test:  # a part of a test, which fails with it
            continue
        if outcome == "failed":
            failed.add(package)
            lines.append(f"failed: {name}: {known.get(name, 'not listed in KNOWN')}")
        is_as_known &= (outcome == "failed") == (name in known)
        if outcome != "failed" and name in known:
            lines.append(f"{outcome}, but listed in KNOWN: {name}")
    lines.append(", ".join(f"{counts[each]} {each}" for each in _OUTCOMES.values()))
    return lines, is_as_known and bool(counts)


def main(arguments: Sequence[str]) -> int:
    """Run the tests, all by default, print the failures and counts, and return the exit status."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "suite"
        try:
            copied(folder)
        except (OSError, subprocess.CalledProcessError) as error:
            sys.stdout.write(f"not run: {error} {(getattr(error, 'stderr', '') or '')[-300:]}\n")
            return 1
        lines, is_as_known = judge(asyncio.run(run_suite(folder, *arguments or ["."])))
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return int(not is_as_known)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
