from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from sbclient.errors import InvalidOperationError
from sbclient.rules.connection_string import parse_connection_string
from sbclient.worker.configuration import Configuration, configure
from sbclient.worker.settings_file import SettingsFile, read_settings_file
from tests.pages.worker_file import EXAMPLES

PAIR = {
    "SERVICEBUS_CONNECTION_STRING": "memory://contoso",
    "SERVICEBUS_SECONDARY_CONNECTION_STRING": "memory://contoso-backup",
}


def given(
    options: dict[str, Any] | None = None, environment: dict[str, str] | None = None, file: SettingsFile | None = None
) -> Configuration:
    return configure(options or {}, PAIR | (environment or {}), file)


def refusal(
    options: dict[str, Any] | None = None, environment: dict[str, str] | None = None, file: SettingsFile | None = None
) -> str:
    with pytest.raises(InvalidOperationError) as caught:
        given(options, environment, file)
    assert "\n" not in caught.value.message
    return caught.value.message


def in_file(folder: Path, content: str) -> SettingsFile:
    (folder / "syphon.toml").write_text(content)
    return read_settings_file(folder / "syphon.toml")


def test_order_is_option_environment_file_default(tmp_path: Path) -> None:
    file = in_file(tmp_path, "max_messages_in_flight = 3\nbacklog_queue_count = 3\nhttp_port = 3\n")
    environment = {"SBCLIENT_SYPHON_MAX_MESSAGES_IN_FLIGHT": "2", "SBCLIENT_SYPHON_BACKLOG_QUEUE_COUNT": "2"}
    found = given({"max_messages_in_flight": "1"}, environment, file)
    settings = found.settings
    assert (settings.max_messages_in_flight, settings.backlog_queue_count, settings.http_port) == (1, 2, 3)
    assert settings.shutdown_timeout == 25.0
    assert [
        found.origins[name]
        for name in ("max_messages_in_flight", "backlog_queue_count", "http_port", "shutdown_timeout")
    ] == [
        "option --max-messages-in-flight",
        "environment variable SBCLIENT_SYPHON_BACKLOG_QUEUE_COUNT",
        "syphon.toml, line 3",
        "default",
    ]


def test_what_differs_from_the_defaults_is_shown_on_one_line_without_the_connection_strings() -> None:
    assert given().settings.shown() == ""
    secrets = {"primary_file", "secondary_file"}
    examples = {name: str(value) for name, value in EXAMPLES.items() if name not in secrets} | {"queue": "0,1"}
    shown = given(examples | {"destination": ["orders"], "sessions": True}).settings.shown()
    assert set(re.findall(r"(\w+)=", shown)) == {*examples, "sessions"}
    assert ("memory" in shown, "\n" in shown) == (False, False)


def test_an_option_without_values_counts_as_not_set(tmp_path: Path) -> None:
    for file in (None, in_file(tmp_path, "queue = [0, 1]")):
        for empty in (list[str](), None):
            assert given({"queue": empty}, file=file).settings.queue == (None if file is None else (0, 1))


def test_an_empty_variable_counts_as_not_set() -> None:
    assert given(environment={"SBCLIENT_SYPHON_HTTP_PORT": ""}).settings.http_port is None
    assert "SBCLIENT_SYPHON_HTTP_PORT" in refusal(environment={"SBCLIENT_SYPHON_HTTP_PORT": " "})


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("queue", "3, 0,3", (0, 3)),
        ("sessions", "TRUE", True),
        ("sessions", True, True),
        ("sessions", False, False),
        ("max_bytes_in_flight", "64 MiB", 64 * 2**20),
        ("max_bytes_in_flight", "1000", 1000),
        ("long_poll", "5 min", timedelta(minutes=5)),
        ("shutdown_timeout", "0.5", 0.5),
        ("until", "Empty", "empty"),
        ("max_messages_per_second", "0.5", 0.5),
    ],
)
def test_values_are_read_as_people_write_them(name: str, text: Any, value: Any) -> None:
    assert getattr(given({name: text}).settings, name) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("queue", "0,x"),
        ("queue", ""),
        ("queue", "-1"),
        ("queue", "10"),
        ("queue", "0,10"),
        ("queue", "10,0"),
        ("sessions", "perhaps"),
        ("max_bytes_in_flight", "64 MB"),
        ("max_bytes_in_flight", "0"),
        ("max_bytes_in_flight", "much"),
        ("long_poll", "0.5"),
        ("long_poll", "2 d"),
        ("shutdown_timeout", "0"),
        ("http_port", "65536"),
        ("http_port", "tcp://10.0.0.1:80"),
        ("until", "full"),
        ("max_messages_per_second", "0"),
        ("max_messages_in_flight", "5001"),
        ("log_level", "loud"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_with_its_name_and_where_it_came_from(name: str, text: str) -> None:
    said = refusal({name: text})
    assert said.startswith(name)
    assert f"option --{name.replace('_', '-')}" in said


@pytest.mark.parametrize("missing", PAIR)
def test_error_about_a_missing_namespace_names_the_setting(missing: str) -> None:
    with pytest.raises(InvalidOperationError) as caught:
        configure({}, {name: value for name, value in PAIR.items() if name != missing}, None)
    assert missing in caught.value.message
    assert "_file" in caught.value.message


def test_connection_string_file_is_relative_to_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("memory://fabrikam\n")
    file = in_file(tmp_path, 'primary_file = "secret"\n')
    environment = {"SERVICEBUS_SECONDARY_CONNECTION_STRING": "memory://contoso-backup"}
    found = configure({}, environment, file)
    assert found.settings.primary == "memory://fabrikam"
    assert found.origins["primary"] == "primary_file, syphon.toml, line 1"


def test_a_connection_string_of_a_file_names_where_its_credential_is_read_again(tmp_path: Path) -> None:
    endpoint = "Endpoint=sb://contoso.servicebus.windows.net/;"
    for text, credential in (
        (f"{endpoint}SharedAccessKeyName=k;SharedAccessKey=c2VjcmV0", str(tmp_path / "secret")),
        (f"{endpoint}CredentialFile=/run/key", "/run/key"),
    ):
        (tmp_path / "secret").write_text(text)
        found = given({"primary_file": str(tmp_path / "secret")}).settings.primary
        assert parse_connection_string(found).credential_file == credential
        assert "c2VjcmV0" not in found


def test_precedence_applies_between_connection_string_and_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("memory://fabrikam\n")
    file = in_file(tmp_path, 'primary_file = "secret"\n')
    overridden = given(file=file)
    assert overridden.settings.primary == "memory://contoso"
    (warning,) = overridden.warnings
    assert "variable SERVICEBUS_CONNECTION_STRING overrides primary_file (syphon.toml, line 1)" in warning
    named = given({"primary_file": str(tmp_path / "secret")}, file=file)
    assert (named.settings.primary, named.warnings) == ("memory://fabrikam", ())
    assert given({"primary": "memory://option"}, file=file).settings.primary == "memory://option"


def test_both_at_once_are_refused(tmp_path: Path) -> None:
    said = refusal({"primary": "memory://a", "primary_file": "b"})
    assert "--primary" in said
    assert "--primary-file" in said


def test_a_connection_string_that_cannot_be_read_is_reported_with_its_origin_and_never_shown(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("Endpoint=sb://contoso/;SharedAccessKey=SECRET\n")
    for said in (
        refusal({"primary": "Endpoint=sb://contoso/;SharedAccessKey=SECRET"}),
        refusal({"primary_file": str(tmp_path / "secret")}),
        refusal({"secondary": "Endpoint=sb://contoso/;SharedAccessKeySECRET"}),
    ):
        assert "SECRET" not in said
        assert "option --" in said


def test_the_shown_settings_contain_no_secret() -> None:
    rows = given({"primary": "Endpoint=sb://a.b/;SharedAccessKeyName=n;SharedAccessKey=SECRET"}).rows()
    assert "SECRET" not in str(rows)
    assert rows[0] == {"name": "primary", "value": "(hidden)", "from": "option --primary"}


@pytest.mark.parametrize(
    ("variable", "advice"),
    [
        ("SBCLIENT_SYPHON_MAX_MESAGES_IN_FLIGHT", "SBCLIENT_SYPHON_MAX_MESSAGES_IN_FLIGHT"),
        ("SBCLIENT_SYPHON_PRIMARY", "SERVICEBUS_CONNECTION_STRING"),
        ("SBCLIENT_SYPHON_XYZ", "SBCLIENT_SYPHON_<NAME>"),
    ],
)
def test_error_about_an_unknown_variable_suggests_a_name(variable: str, advice: str) -> None:
    said = refusal(environment={variable: "SECRET"})
    assert variable in said
    assert advice in said
    assert "SECRET" not in said


def test_variables_that_kubernetes_makes_of_a_service_are_ignored() -> None:
    given(
        environment={
            "SBCLIENT_SYPHON_SERVICE_HOST": "10.0.0.1",
            "SBCLIENT_SYPHON_SERVICE_PORT_METRICS": "80",
            "SBCLIENT_SYPHON_PORT_80_TCP_ADDR": "10.0.0.1",
            "SBCLIENT_SYPHON_PORT": "tcp://10.0.0.1:80",
        }
    )
    assert given(environment={"SBCLIENT_SYPHON_HTTP_PORT": "80"}).settings.http_port == 80


def test_error_about_the_pair_names_the_source_of_the_value(tmp_path: Path) -> None:
    (tmp_path / "syphon.toml").write_text("max_messages_per_second = -1\n")
    said = refusal(file=read_settings_file(tmp_path / "syphon.toml"))
    assert "syphon.toml, line 1" in said
