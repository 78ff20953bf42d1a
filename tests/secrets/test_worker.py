"""The settings, log and HTTP responses of the worker `sbclient syphon` leak no secret."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sbclient import clock, prometheus
from sbclient.errors import InvalidOperationError
from sbclient.message import ServiceBusMessage
from sbclient.testing import Fault, FaultKind, memory_pair
from sbclient.worker.configuration import configure
from sbclient.worker.http_api import WorkerApi
from sbclient.worker.settings_file import read_settings_file
from tests.client.scene import QUEUE, options
from tests.secrets.canaries import BODY, KEY, PROPERTY, connection_string
from tests.secrets.output_capture import OutputCapture
from tests.secrets.reachable import reprs_of
from tests.worker.scene import Run, request_to

PRIMARY, SECONDARY = connection_string(), connection_string("sb://contoso-backup.servicebus.windows.net/")
ENVIRONMENT = {"SERVICEBUS_CONNECTION_STRING": PRIMARY, "SERVICEBUS_SECONDARY_CONNECTION_STRING": SECONDARY}


def test_reprs_of_settings_leak_no_key(capture: OutputCapture, tmp_path: Path) -> None:
    (tmp_path / "primary").write_text(PRIMARY)
    file = tmp_path / "syphon.toml"
    file.write_text('primary_file = "primary"\n')
    by_reference = f"{PRIMARY.partition(';')[0]};CredentialFile={tmp_path / 'primary'}"
    by_file = {name: value for name, value in ENVIRONMENT.items() if "SECONDARY" in name}
    for made in (
        configure({}, ENVIRONMENT, None),
        configure({"primary": PRIMARY, "secondary": SECONDARY}, {}, None),
        configure({}, by_file, read_settings_file(file)),
    ):
        assert made.settings.primary in (PRIMARY, by_reference)
        capture.add("settings", repr(made))
        capture.add("the rows of the settings", json.dumps(made.rows(), default=str))
        for where, text in reprs_of([made]):
            capture.add(where, text)


@pytest.mark.parametrize(
    "text",
    [
        f'primary = "{PRIMARY}"\n',
        f'primry = "{PRIMARY}"\n',
        f'primary_file = "{PRIMARY}\n',
        f"primary_file = {PRIMARY}\n",
        f'[primary]\nfile = "{PRIMARY}"\n',
        f'backlog_queue_count = 10\nbacklog_queue_count = "{PRIMARY}"\n',
        f'shutdown_timeout = ["{PRIMARY}"]\n',
    ],
)
def test_errors_about_invalid_files_leak_nothing(capture: OutputCapture, tmp_path: Path, text: str) -> None:
    file = tmp_path / "syphon.toml"
    file.write_text(text)
    with capture.expecting(InvalidOperationError, where="a file"):
        configure({}, ENVIRONMENT, read_settings_file(file))


@pytest.mark.parametrize(
    ("options", "environment"),
    [
        ({"primary": KEY}, ENVIRONMENT),
        ({"primary": PRIMARY.replace(";", ",")}, ENVIRONMENT),
        ({"primary": PRIMARY, "primary_file": "x"}, ENVIRONMENT),
        ({}, {**ENVIRONMENT, "SERVICEBUS_CONNECTION_STRING": KEY}),
        ({}, {**ENVIRONMENT, "SBCLIENT_SYPHON_PRIMRY": PRIMARY}),
        ({}, {"SERVICEBUS_CONNECTION_STRING": PRIMARY}),
        ({"queue": "99"}, ENVIRONMENT),
    ],
)
def test_errors_about_invalid_settings_leak_nothing(
    capture: OutputCapture, options: dict[str, str], environment: dict[str, str]
) -> None:
    with capture.expecting(InvalidOperationError, where="settings"):
        configure(options, environment, None)


def test_error_about_a_file_with_extra_content_leaks_nothing(capture: OutputCapture, tmp_path: Path) -> None:
    (tmp_path / "primary").write_text(f"{PRIMARY}\n{SECONDARY}\n")
    with capture.expecting(InvalidOperationError, where="a file"):
        configure({"primary_file": str(tmp_path / "primary"), "secondary": SECONDARY}, {}, None)


async def test_http_responses_and_logs_leak_nothing(capture: OutputCapture) -> None:
    prometheus.start()
    pair = memory_pair(seed=1)
    async with pair.client(options()) as client:
        await client.administration.create_queue(QUEUE)
        client.pair.force_failover(QUEUE)
        client.pair.force_failover("missing")
        for path in (QUEUE, QUEUE, "missing"):
            message = ServiceBusMessage(BODY, application_properties={"note": PROPERTY})
            await client.get_queue_sender(path).send_messages(message)
    pair.primary.inject(Fault(FaultKind.DOWN, entity_path=QUEUE))
    async with Run(pair) as run:
        api = WorkerApi(run.worker, prometheus.exposition)
        for _ in range(3):
            await clock.sleep(60)
            for path in ("healthz", "readyz", "metrics", "status", "pause", "resume", "nothing"):
                for method in ("GET", "POST"):
                    answer = api.answer(request_to(f"/{path}", method))
                    capture.add(f"{method} /{path}", answer.body.decode())
            for where, text in reprs_of([run.worker]):
                capture.add(where, text)
            pair.primary.heal()
    prometheus.stop()
