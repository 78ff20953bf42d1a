"""The samples of azure-servicebus, run as programs against an emulator.

    python -m tests.wire.python_samples [NAME...]

pip fetches the source distribution of the installed version, which has the samples, and azure-identity, to the user's
cache. The samples are not changed. What they expect outside of themselves is replaced: environment variables name the
emulator, an endpoint for tokens stands for the managed identity of a machine in Azure, and the certificate of the
emulator is added to those that Python trusts. Azure's port 5671 must be free.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

import certifi

from sbclient import ServiceBusClient, ServiceBusMessage
from sbclient.emulator import Emulator

PORT: Final = 5671
"""The client has no option for another port if it gets a host and a credential."""

PROXY_PORT: Final = 8899
"""Stated in the samples of proxies."""

PACKAGES: Final = ("azure-common", "azure-core-tracing-opentelemetry", "azure-identity", "websocket-client")
"""What samples and tests import besides the client."""

FETCH_S: Final = 240.0
RUN_S: Final = 100.0
PATIENT: Final = {"auto_lock_renew": 600.0}
"""Samples that wait for longer, and their limits, in seconds."""

AT_A_TIME: Final = 4
SEEDED: Final = 30
"""Messages in every entity from which a sample receives what others have sent."""

NOT_RUN: Final = {
    "client_identity_authentication": "needs a service principal of Microsoft Entra ID",
    "connection_to_custom_endpoint_address": "has placeholders for the endpoint and the certificate in its text",
    "proxy_async": "names its proxy without a scheme, which the client rejects with InvalidURL before it connects",
}
ENDLESS: Final = {"receive_iterator_queue": "seeded", "failure_and_recovery": "Data 9"}
"""Samples that receive until they are stopped, and what the last message contains."""

PRINTED: Final = {
    "deadletter_messages_and_correct": "Received fixed message",
    "list_sessions": "Queue session: seeded",
    "receive_deferred_message_queue": "Completing deferred msg: seeded",
    "receive_peek": "seeded",
    "receive_queue": "seeded",
    "receive_subscription": "seeded",
    "session_pool_receive": "Sample message no. 19",
    "session_send_receive": "Session state: b'END'",
    "topic_subscription_with_rule_operations": "Color Property = BlueProcessed",
}
"""What a sample prints if the emulator does its part; the exit status of the others shows it."""


class NotFetchedError(Exception):
    """pip could not fetch something."""


@dataclass(frozen=True, slots=True)
class Result:
    """How a sample ended.

    Attributes:
        name: `sync_samples/receive_queue`.
        outcome: `ok`, `failed` or `not run`.
        reason: for the outcome; empty for `ok`.
    """

    name: str
    outcome: str
    reason: str = ""
    seconds: float = 0.0


def fetched(part: str) -> tuple[Path, Path]:
    """Return a folder of the source distribution, `samples` or `tests`, and a folder with packages that they import.

    Raises:
        NotFetchedError: pip could not fetch one of them, or the source distribution has no such folder.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sbclient-wire-samples"
    name = f"azure_servicebus-{version('azure-servicebus')}"
    wanted, packages = cache / name / part, cache / "packages"
    cache.mkdir(parents=True, exist_ok=True)
    if not wanted.is_dir():
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            requirement = f"azure-servicebus=={version('azure-servicebus')}"
            _pip("download", "--no-binary", "azure-servicebus", "--no-deps", "--dest", folder, requirement)
            with tarfile.open(f"{folder}/{name}.tar.gz") as archive:
                archive.extractall(folder, filter="data")
            if not (Path(folder) / name / part).is_dir():
                raise NotFetchedError(f"the source distribution of {requirement} has no {part}")
            shutil.copytree(f"{folder}/{name}/{part}", wanted)
    api = f"opentelemetry-api=={version('opentelemetry-api')}"  # the one that fits the installed SDK of it
    return wanted, install(packages, *PACKAGES, api)


def install(folder: Path, *requirements: str) -> Path:
    """Install packages in a folder, unless it exists, and return it.

    Raises:
        NotFetchedError: pip could not fetch them.
    """
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=folder.parent) as made:
            _pip("install", "--target", f"{made}/packages", *requirements)
            shutil.move(f"{made}/packages", folder)
    return folder


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise NotFetchedError(f"pip did not fetch {arguments[-1]} in {FETCH_S:.0f} s") from error
    if done.returncode:
        raise NotFetchedError(f"pip could not fetch {arguments[-1]}: {done.stderr.strip()[-300:]}")


async def run_samples(
    samples: Path,
    packages: Path,
    names: Sequence[str] = (),
    *,
    port: int = PORT,
    proxy_port: int = PROXY_PORT,
    on_result: Callable[[Result], object] = lambda _: None,
) -> list[Result]:
    """Run samples, all by default, and return the results in the order of their names.

    Args:
        samples, packages: see `fetched`.
        names: without the suffix `.py`: `sync_samples/receive_queue`.
        on_result: is called when a sample has ended.
    """
    found = _names(samples)
    if missing := set(names) - set(found):
        raise LookupError(f"there are no samples {', '.join(sorted(missing))} in {samples}")
    async with AsyncExitStack() as stack:
        emulator = await stack.enter_async_context(Emulator("contoso", first_port=port, auth="jwt-any"))
        tokens = await stack.enter_async_context(served(answer_token))
        target = emulator.ports["contoso"]
        await stack.enter_async_context(served(lambda *streams: _tunnel(target, *streams), proxy_port))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        trust(Path(folder), emulator.certificate_path)
        environment = _environment(emulator, tokens, f"{folder}:{packages}", f"{folder}/certifi/cacert.pem")
        at_a_time = asyncio.Semaphore(AT_A_TIME)

        async def run(name: str) -> Result:
            async with at_a_time:
                result = await _run(emulator, samples, name, environment)
            on_result(result)
            return result

        return list(await asyncio.gather(*(run(name) for name in names or found)))


def _names(samples: Path) -> list[str]:
    return sorted(str(path.relative_to(samples).with_suffix("")) for path in samples.glob("*/*.py"))


def trust(folder: Path, certificate: Path) -> None:
    """Copy the package of the trusted certificates, with one more."""
    shutil.copytree(Path(certifi.__file__).parent, folder / "certifi", ignore=shutil.ignore_patterns("__pycache__"))
    bundle = folder / "certifi" / "cacert.pem"
    bundle.write_bytes(Path(certifi.where()).read_bytes() + b"\n" + certificate.read_bytes())


def _environment(emulator: Emulator, tokens: int, python_path: str, bundle: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AZURE_", "SERVICEBUS_"))}
    return {
        **inherited,
        "PYTHONPATH": python_path,
        "SERVICEBUS_CONNECTION_STR": emulator.connection_string,
        "SERVICEBUS_FULLY_QUALIFIED_NAMESPACE": f"localhost:{emulator.ports['contoso']}",
        "SERVICEBUS_SAS_POLICY": "RootManageSharedAccessKey",
        "SERVICEBUS_SAS_KEY": emulator.root_key(),
        "SERVICEBUS_SESSION_ID": "seeded",
        "IDENTITY_ENDPOINT": f"http://127.0.0.1:{tokens}/",
        "IDENTITY_HEADER": "secret",
        "REQUESTS_CA_BUNDLE": bundle,
        "SSL_CERT_FILE": bundle,
    }


async def _run(emulator: Emulator, samples: Path, name: str, environment: Mapping[str, str]) -> Result:
    stem = name.split("/")[1].removesuffix("_async")
    if reason := NOT_RUN.get(name.split("/")[1]) or NOT_RUN.get(stem):
        return Result(name, "not run", reason)
    entity = name.replace("/", "-")
    await _make_entities(emulator, entity, stem)
    limit_s = PATIENT.get(stem, RUN_S)
    begun = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-u",
        str(samples / f"{name}.py"),
        env={
            **environment,
            "SERVICEBUS_QUEUE_NAME": entity,
            "SERVICEBUS_SESSION_QUEUE_NAME": f"{entity}-sessions",
            "SERVICEBUS_TOPIC_NAME": f"{entity}-topic",
            "SERVICEBUS_SUBSCRIPTION_NAME": "s",
        },
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    ending = asyncio.ensure_future(process.communicate())
    try:
        if stem in ENDLESS:
            await _until_empty(emulator, entity, ending)
            with suppress(ProcessLookupError):  # it has ended already, which is a failure
                process.terminate()
        printed, errors = (text.decode() for text in await asyncio.wait_for(asyncio.shield(ending), limit_s))
    except TimeoutError:
        process.kill()
        return Result(name, "failed", f"did not end in {limit_s:.0f} s: {_last_error((await ending)[1].decode())}")
    finally:
        if process.returncode is None:
            process.kill()
            await ending
    seconds = time.monotonic() - begun
    if stem in ENDLESS and process.returncode == -signal.SIGTERM and ENDLESS[stem] in printed:
        return Result(name, "ok", "stopped when it had received everything", seconds)
    if process.returncode:
        return Result(name, "failed", _last_error(errors), seconds)
    if PRINTED.get(stem, "") not in printed:
        return Result(name, "failed", f"did not print {PRINTED[stem]!r}: {printed[-300:]!r}", seconds)
    return Result(name, "ok", seconds=seconds)


def _last_error(errors: str) -> str:
    lines = errors.strip().splitlines()
    raised = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
    return (raised or lines or ["nothing on standard error"])[-1]


async def _make_entities(emulator: Emulator, name: str, stem: str) -> None:
    has_sessions = stem == "list_sessions"
    emulator.create_queue(name)
    emulator.create_queue(f"{name}-sessions", requires_session=True)
    emulator.create_topic(f"{name}-topic")
    emulator.create_subscription(f"{name}-topic", "s", requires_session=has_sessions)
    if stem not in ENDLESS and not stem.startswith(("receive_", "sample_code", "list_")):
        return
    async with ServiceBusClient.from_connection_string(emulator.connection_string) as client:
        seeded = [ServiceBusMessage("seeded", session_id="seeded" if has_sessions else None) for _ in range(SEEDED)]
        for sender in (
            client.get_topic_sender(f"{name}-topic"),
            client.get_queue_sender(f"{name}{'-sessions' * has_sessions}"),
        ):
            await sender.send_messages(seeded)


async def _until_empty(emulator: Emulator, queue: str, ending: asyncio.Future[tuple[bytes, bytes]]) -> None:
    """Wait until a queue is empty, or the sample has ended."""
    broker = emulator.context().host.namespace
    deadline = time.monotonic() + RUN_S
    while len(broker.queue(queue)) and time.monotonic() < deadline:
        if (await asyncio.wait([ending], timeout=0.1))[0]:
            return


# ---------------------------------------------------------------------- what Azure has, and this machine has not


@asynccontextmanager
async def served(answer: object, port: int = 0) -> AsyncIterator[int]:
    """Serve connections; yields the port."""
    server = await asyncio.start_server(answer, "127.0.0.1", port)  # type: ignore[arg-type]
    async with server:
        yield server.sockets[0].getsockname()[1]


async def answer_token(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one request for a token, as the App Service of Azure does for a managed identity."""
    await reader.readuntil(b"\r\n\r\n")
    expires = int(time.time()) + 3600
    token = ".".join(
        base64.urlsafe_b64encode(part).rstrip(b"=").decode()
        for part in (b'{"alg":"none","typ":"JWT"}', json.dumps({"exp": expires}).encode(), b"unsigned")
    )
    answer = {"access_token": token, "expires_on": str(expires), "resource": "servicebus", "token_type": "Bearer"}
    body = json.dumps(answer).encode()
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n")
    writer.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
    await writer.drain()
    writer.close()


async def _tunnel(port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Be an HTTP proxy that connects every tunnel to the emulator."""
    await reader.readuntil(b"\r\n\r\n")
    far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")

    async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while read := await source.read(65_536):
                sink.write(read)
                await sink.drain()
        except ConnectionError:
            pass
        finally:
            sink.close()

    await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer))


def _print(result: Result) -> None:
    sys.stdout.write(f"{result.name:<65}{result.outcome:<8}{result.seconds:6.1f} s  {result.reason}\n")
    sys.stdout.flush()


def main(names: Sequence[str]) -> int:
    """Run samples, all by default, print the result of each, and return the exit status."""
    try:
        results = asyncio.run(run_samples(*fetched("samples"), names, on_result=_print))
    except NotFetchedError as error:
        sys.stdout.write(f"not run: {error}\n")
        return 1
    counts = ", ".join(f"{sum(each.outcome == way for each in results)} {way}" for way in ("ok", "failed", "not run"))
    sys.stdout.write(f"azure-servicebus {version('azure-servicebus')}: {len(results)} samples: {counts}\n")
    return int(any(each.outcome == "failed" for each in results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
