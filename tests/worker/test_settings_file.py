from __future__ import annotations

from pathlib import Path

import pytest

from sbclient.errors import InvalidOperationError
from sbclient.worker.settings_file import MAX_SECRET_BYTES, read_secret, read_settings_file
from tests.blanks import AROUND_A_LINE


def written(folder: Path, content: str) -> Path:
    path = folder / "syphon.toml"
    path.write_text(content, encoding="utf-8")
    return path


def refusal(folder: Path, content: str) -> str:
    with pytest.raises(InvalidOperationError) as caught:
        read_settings_file(written(folder, content))
    assert "\n" not in caught.value.message
    return caught.value.message


def test_values_are_read_with_their_lines(tmp_path: Path) -> None:
    file = read_settings_file(
        written(
            tmp_path,
            '# the syphon\nprimary_file = "/run/secrets/primary"\n\nsessions = true\nqueue = [0, 3]\n'
            'max_messages_per_second = 2.5\n"long_poll" = "5 min"\nmax_bytes_in_flight = 1000000\n',
        )
    )
    assert file.values == {
        "primary_file": "/run/secrets/primary",
        "sessions": "true",
        "queue": "0,3",
        "max_messages_per_second": "2.5",
        "long_poll": "5 min",
        "max_bytes_in_flight": "1000000",
    }
    assert file.origins["primary_file"] == "syphon.toml, line 2"
    assert file.origins["long_poll"] == "syphon.toml, line 7"


def test_empty_file_sets_nothing(tmp_path: Path) -> None:
    assert read_settings_file(written(tmp_path, "")).values == {}


def test_an_unknown_setting_is_refused_with_its_line_and_the_nearest_name(tmp_path: Path) -> None:
    said = refusal(tmp_path, "sessions = true\nmax_mesages_per_second = 5\n")
    assert "max_mesages_per_second in syphon.toml, line 2" in said
    assert "did you mean max_messages_per_second?" in said
    assert "known are primary" in refusal(tmp_path, "zzz = 1")


def test_a_table_is_refused_by_its_name(tmp_path: Path) -> None:
    assert "[limits] in syphon.toml, line 2" in refusal(tmp_path, "\n[limits]\nmax_messages_in_flight = 5\n")
    assert "write max_messages_in_flight before" in refusal(tmp_path, "[limits]\nmax_messages_in_flight = 5\n")


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('sessions = "yes"', "a text"),
        ("backlog_queue_count = true", "true or false"),
        ("backlog_queue_count = 1.5", "a number"),
        ('backlog_queue_count = "10"', "a text"),
        ("primary_name = 5", "a whole number"),
        ("primary_name = 2026-01-01", "something else"),
        ("until = ['empty']", "a list"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_its_line(tmp_path: Path, line: str, what: str) -> None:
    said = refusal(tmp_path, f"\n{line}\n")
    assert f"in syphon.toml, line 2 is {what}" in said


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ('sessions = "yes"', "it must be true or false"),
        ('backlog_queue_count = "10"', "it must be a whole number from 1"),
        ("primary_name = 5", "it must be a text"),
        ("queue = 1.5", "it must be a whole number or a list, whole numbers"),
        ("until = ['empty']", "it must be a text, empty"),
    ],
)
def test_error_states_the_expected_value_once(tmp_path: Path, line: str, wanted: str) -> None:
    assert refusal(tmp_path, f"\n{line}\n").endswith(wanted)


def test_a_connection_string_in_the_file_is_refused_and_not_repeated(tmp_path: Path) -> None:
    said = refusal(tmp_path, 'primary = "Endpoint=sb://contoso/;SharedAccessKey=SECRET"\n')
    assert "SECRET" not in said
    assert "primary_file" in said


def test_invalid_toml_is_rejected_and_not_repeated(tmp_path: Path) -> None:
    said = refusal(tmp_path, "primary = Endpoint=sb://contoso/;SharedAccessKey=SECRET\n")
    assert "line 1" in said
    assert "SECRET" not in said


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.toml", tmp_path):
        with pytest.raises(InvalidOperationError) as caught:
            read_settings_file(path)
        assert str(path) in caught.value.message
    (tmp_path / "latin.toml").write_bytes(b"# \xe9\n")
    with pytest.raises(InvalidOperationError):
        read_settings_file(tmp_path / "latin.toml")


@pytest.mark.parametrize(("before", "after"), AROUND_A_LINE)
def test_what_editors_leave_around_a_line_changes_nothing(tmp_path: Path, before: str, after: str) -> None:
    (tmp_path / "primary").write_bytes(f"{before}memory://contoso{after}".encode())
    assert read_secret("primary_file", "primary", tmp_path) == "memory://contoso"
    assert read_secret("primary_file", str(tmp_path / "primary"), Path("elsewhere")) == "memory://contoso"
    path = tmp_path / "syphon.toml"
    path.write_bytes(f"{before}primary_name = 'a '{after}\nqueue = [1, 2]{after}".encode())
    assert read_settings_file(path).values == {"primary_name": "a ", "queue": "1,2"}


@pytest.mark.parametrize("content", ["", "\n", "SECRET\nSECRET", "SECRET" * 10_000])
def test_a_file_that_holds_no_secret_is_refused_and_not_repeated(tmp_path: Path, content: str) -> None:
    (tmp_path / "primary").write_text(content)
    with pytest.raises(InvalidOperationError) as caught:
        read_secret("primary_file", "primary", tmp_path)
    assert "SECRET" not in caught.value.message
    assert "primary_file" in caught.value.message


def test_a_secret_may_be_as_long_as_the_limit(tmp_path: Path) -> None:
    (tmp_path / "primary").write_text("s" * MAX_SECRET_BYTES + "\n")
    assert read_secret("primary_file", "primary", tmp_path) == "s" * MAX_SECRET_BYTES
    (tmp_path / "primary").write_text("s" * (MAX_SECRET_BYTES + 1))
    with pytest.raises(InvalidOperationError):
        read_secret("primary_file", "primary", tmp_path)


def test_every_entry_of_a_list_is_read_in_its_order(tmp_path: Path) -> None:
    entries = [f"q{number % 20}" for number in range(40)]
    (tmp_path / "syphon.toml").write_text(f"destination = {entries}")
    assert read_settings_file(tmp_path / "syphon.toml").values == {"destination": ",".join(entries)}
