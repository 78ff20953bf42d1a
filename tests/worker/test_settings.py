from __future__ import annotations

import dataclasses
from datetime import timedelta

import pytest

from sbclient.options import PairedNamespaceOptions, SyphonLimits
from sbclient.worker.settings import SETTINGS, WorkerSettings


def test_defaults_equal_those_of_the_options() -> None:
    settings = WorkerSettings()
    assert settings.pairing() == PairedNamespaceOptions(provision="none")
    assert settings.limits() == SyphonLimits()


def test_every_choice_about_limits_can_be_made() -> None:
    assert {field.name for field in dataclasses.fields(SyphonLimits)} <= set(SETTINGS)


def test_settings_reach_the_options() -> None:
    settings = WorkerSettings(
        sessions=True,
        provision=True,
        long_poll=timedelta(minutes=1),
        missing_entity_grace=timedelta(hours=1),
        primary_name="contoso",
        max_messages_per_second=5.0,
    )
    pairing = settings.pairing()
    assert (pairing.ordering, pairing.provision, pairing.primary_name) == ("session", "create", "contoso")
    assert (pairing.syphon_long_poll.total_seconds(), pairing.missing_entity_grace.total_seconds()) == (60.0, 3600.0)
    assert settings.limits().max_messages_per_second == 5.0


@pytest.mark.parametrize(
    ("until", "given", "expected"),
    [(None, None, None), ("empty", None, 60.0), (None, 5.0, 5.0), ("empty", 0.0, 0.0)],
)
def test_a_service_waits_for_the_secondary_for_ever_and_a_cron_job_does_not(
    until: str | None, given: float | None, expected: float | None
) -> None:
    assert WorkerSettings(until=until, start_timeout=given).start_timeout_s == expected  # type: ignore[arg-type]


def test_secrets_are_never_shown() -> None:
    settings = WorkerSettings(primary="Endpoint=sb://a;SharedAccessKey=SECRET", secondary="SECRET")
    assert "SECRET" not in repr(settings)
    assert SETTINGS["primary"].shown(settings.primary) == "(hidden)"
    assert SETTINGS["primary"].shown("") == ""


@pytest.mark.parametrize("name", SETTINGS)
def test_shown_settings_can_be_read_again(name: str) -> None:
    setting = SETTINGS[name]
    if setting.default is not None:
        assert setting.kind.parse(name, setting.shown(setting.default)) == setting.default


@pytest.mark.parametrize("name", SETTINGS)
def test_each_row_is_complete(name: str) -> None:
    setting = SETTINGS[name]
    assert setting.about.endswith(".")
    assert setting.variable.isupper()
    assert setting.option == "--" + name.replace("_", "-")
