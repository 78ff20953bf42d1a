"""A key that is replaced while clients and a worker run, on emulators that then accept another one."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sbclient import PairedNamespaceOptions, ServiceBusClient, ServiceBusMessage
from sbclient.emulator import Emulator
from sbclient.errors import InvalidOperationError, ServiceBusAuthenticationError
from sbclient.rules.connection_string import parse_connection_string
from sbclient.testing import served
from sbclient.transport.credential_file import CredentialFile, Rejections
from tests.blanks import AROUND_A_LINE
from tests.commands import SBCLIENT

pytestmark = pytest.mark.real_time  # sockets

KEY_NAME = "RootManageSharedAccessKey"


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


class Pair:
    """Two namespaces of an emulator that starts again with another key, and the files with the keys of its clients."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = (free_port(), free_port())
        self.files = (folder / "primary", folder / "secondary")

    @contextmanager
    def accepting(self, key: str) -> Iterator[Emulator]:
        names = [f"{name}:{port}" for name, port in zip(("contoso", "contoso-backup"), self.ports, strict=True)]
        with served(*names, key=key, data=self.folder / "data") as emulator:
            yield emulator

    def text(self, at: int, credential: str) -> str:
        return f"Endpoint=sb://localhost:{self.ports[at]};{credential};UseDevelopmentEmulator=true"

    def write(self, key: str) -> None:
        """Replace both files at once, as a secret store does."""
        for at, file in enumerate(self.files):
            new = file.with_suffix(".new")
            new.write_text(self.text(at, f"SharedAccessKeyName={KEY_NAME};SharedAccessKey={key}") + "\n")
            new.rename(file)

    def client(self, **options: Any) -> ServiceBusClient:
        primary, secondary = (self.text(at, f"CredentialFile={file}") for at, file in enumerate(self.files))
        pairing = PairedNamespaceOptions(primary_name="contoso")
        return ServiceBusClient.from_connection_string(primary, secondary=secondary, options=pairing, **options)


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    made = Pair(tmp_path)
    made.write("first")
    return made


@pytest.mark.parametrize(("before", "after"), AROUND_A_LINE)
def test_what_editors_leave_around_a_key_is_no_part_of_it(tmp_path: Path, before: str, after: str) -> None:
    file = tmp_path / "key"
    connection = CredentialFile(
        parse_connection_string(f"Endpoint=sb://h/;CredentialFile={file};SharedAccessKeyName=n")
    )
    for key in ("first=", "second="):
        file.write_bytes(f"{before}{key}{after}".encode())
        assert connection.read().key == key


def test_each_trouble_with_a_credential_is_told_as_the_first(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "sbclient")
    file = tmp_path / "key"
    credential = CredentialFile(
        parse_connection_string(f"Endpoint=sb://h/;CredentialFile={file};SharedAccessKeyName=n")
    )
    rejections = Rejections("contoso", "the key 'n'")
    told = []
    for _ in range(3):
        caplog.clear()
        file.write_text("key")
        assert credential.read().key == "key"
        file.unlink()
        for _ in range(2):
            assert credential.read().key == "key"
            rejections.rejected(ServiceBusAuthenticationError("no"))
        for _ in range(2):
            rejections.accepted()
        told.append([record.getMessage() for record in caplog.records])
    assert len(told[0]) == 3
    assert told == [told[0]] * 3


@pytest.mark.parametrize("transport", ["amqp", "sdk"])
async def test_client_uses_the_new_key_of_the_file(
    pair: Pair, transport: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "sbclient")
    client = pair.client(transport=transport)
    with pair.accepting("first"):
        await client.administration.create_queue("orders")
        async with client.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("1"))
    with pair.accepting("second"):
        async with client.get_queue_sender("orders") as sender:
            with pytest.raises(ServiceBusAuthenticationError):
                await sender.send_messages(ServiceBusMessage("2"))
            with pytest.raises(ServiceBusAuthenticationError):
                await client.administration.get_queue("orders")
            assert client.pair.status().entities["orders"].state == "healthy"  # a rejected key is no outage
            pair.write("second")
            await sender.send_messages(ServiceBusMessage("3"))
        runtime = await client.administration.get_queue_runtime_properties("orders")
        assert runtime.active_message_count == 2
        await client.close()
    events = [getattr(record, "event_name", "") for record in caplog.records]
    assert events.count("credential.replaced") >= 1
    if transport == "amqp":
        assert (events.count("credential.rejected"), events.count("credential.accepted")) == (1, 1)
    assert "second" not in caplog.text


async def test_renew_credentials_replaces_the_tokens_of_open_links(pair: Pair) -> None:
    emulators = served(
        *[f"{name}:{port}" for name, port in zip(("contoso", "backup"), pair.ports, strict=True)], key="first"
    )
    with emulators as emulator:
        context = emulator.context("contoso")
        async with pair.client() as client:
            await client.administration.create_queue("orders")
            async with client.get_queue_sender("orders") as sender:
                await sender.send_messages(ServiceBusMessage("1"))
                seen: list[str] = []
                check = context.authorizer.authenticate
                context.authorizer.authenticate = lambda token, now: seen.append(token) or check(token, now)  # type: ignore[method-assign, func-returns-value]
                await client.renew_credentials()
                assert any("orders" in token for token in seen)


def test_worker_goes_on_with_the_new_key_of_the_file(pair: Pair) -> None:
    command = [*SBCLIENT, "syphon", "--http-port", "0"]
    command += ["--primary-name", "contoso", "--provision", "--probe-interval", "1"]
    for at, side in enumerate(("primary", "secondary")):
        command += [f"--{side}-file", str(pair.files[at])]
    pair.write("wrong")
    process = subprocess.Popen(command, stderr=subprocess.PIPE, encoding="utf-8", env=os.environ)
    log: list[dict[str, Any]] = []

    def wait(event: str) -> None:
        for line in process.stderr or ():
            log.append(json.loads(line))
            if log[-1]["event"] == event:
                return
        raise AssertionError(f"the worker ended without {event}: {log}")

    with process:
        try:
            with pair.accepting("first"):
                wait("worker.rejected")
                assert "secondary_file, option --secondary-file" in log[-1]["message"]
                pair.write("first")  # without a signal
                wait("worker.accepted")
                wait("syphon.started")
            with pair.accepting("second"):
                wait("worker.rejected")
                assert any(one["event"] == "credential.rejected" and "the file " in one["message"] for one in log)
                pair.write("second")
                process.send_signal(signal.SIGHUP)
                wait("credential.replaced")
                wait("worker.accepted")
                process.send_signal(signal.SIGTERM)
                rest = process.stderr.read() if process.stderr is not None else ""
                assert process.wait(60) == 0, rest
        finally:
            process.kill()
    refused = [one for one in log if one.get("error") == "ServiceBusAuthenticationError"]
    assert not any("unreachable" in one["message"] for one in refused)


NAMED = "Endpoint=sb://h;SharedAccessKeyName=n;CredentialFile=/f"


@pytest.mark.parametrize(
    ("content", "key_name", "key", "signature"),
    [
        ("abc=\n", "n", "abc=", None),
        ("SharedAccessSignature sr=x&sig=y", None, None, "SharedAccessSignature sr=x&sig=y"),
        ("Endpoint=sb://h/;SharedAccessKeyName=m;SharedAccessKey=k", "m", "k", None),
    ],
)
def test_content_of_a_file(content: str, key_name: str | None, key: str | None, signature: str | None) -> None:
    found = parse_connection_string(NAMED).with_credential(content)
    assert (found.key_name, found.key, found.signature) == (key_name, key, signature)


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (NAMED, ""),
        (NAMED, "SECRET\nSECRET"),
        (NAMED, "Endpoint=sb://other/;SharedAccessKeyName=m;SharedAccessKey=SECRET"),
        ("Endpoint=sb://h;CredentialFile=/f", "SECRET"),
    ],
)
def test_unusable_content_is_refused_without_showing_it(text: str, content: str) -> None:
    with pytest.raises(InvalidOperationError) as refused:
        parse_connection_string(text).with_credential(content)
    assert "SECRET" not in str(refused.value)


def test_credential_and_file_together_are_refused() -> None:
    with pytest.raises(InvalidOperationError, match="CredentialFile"):
        parse_connection_string(f"{NAMED};SharedAccessKey=k")


async def test_missing_file_is_named(tmp_path: Path) -> None:
    text = f"Endpoint=sb://localhost:1;SharedAccessKeyName=n;CredentialFile={tmp_path / 'none'}"
    with served() as emulator:
        text = text.replace(":1;", f":{next(iter(emulator.ports.values()))};UseDevelopmentEmulator=true;")
        async with ServiceBusClient.from_connection_string(text) as client, client.get_queue_sender("orders") as sender:
            with pytest.raises(InvalidOperationError, match="none"):
                await sender.send_messages(ServiceBusMessage("x"))
