"""Which requests of browsers are let in: the own page's, from an address of this machine."""

from __future__ import annotations

import pytest

from sbclient.emulator.net.browsers import host_of, is_local_name, reason_to_refuse
from sbclient.emulator.net.http_messages import Request
from tests.emulator.requests import NoConnection


def asked(method: str = "POST", **headers: str) -> Request:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Request(
        method, ("$control", "purge"), {}, {"host": "localhost:5672", **named}, b"", "127.0.0.1:1", NoConnection()
    )


@pytest.mark.parametrize(
    "authority",
    [
        *("localhost", "LOCALHOST:5672", "127.0.0.1:5672", "[::1]:5672", "[::1]"),
        *("a.localhost:1", "host.docker.internal:5672", "localhost.:5672"),
    ],
)
def test_loopback_names_are_accepted(authority: str) -> None:
    assert reason_to_refuse(asked(host=authority)) is None
    assert reason_to_refuse(asked(host=authority), is_exposed=True) is None


@pytest.mark.parametrize("authority", ["10.0.0.7:80", "emulator:5672", "[2001:db8::1]:5672"])
def test_addresses_and_names_without_a_dot_are_accepted_only_if_other_machines_can_connect(authority: str) -> None:
    assert reason_to_refuse(asked(host=authority)) is not None
    assert reason_to_refuse(asked(host=authority), is_exposed=True) is None


@pytest.mark.promise("emulator.web-pages")
@pytest.mark.parametrize(
    "authority",
    ["evil.example:5672", "localhost.evil.example", "127.0.0.1.evil.example", "1.2.3", "a.local", "x:evil.example"],
)
def test_host_names_of_the_internet_are_rejected(authority: str) -> None:
    assert reason_to_refuse(asked(host=authority)) is not None
    is_word = authority == "x:evil.example"  # the port of a host of one word, which no browser would send
    assert (reason_to_refuse(asked(host=authority), is_exposed=True) is None) is is_word


def test_a_host_name_given_to_the_emulator_is_accepted() -> None:
    request = asked(host="Broker.Corp.example:5672", origin="https://broker.corp.example:5672")
    assert reason_to_refuse(request) is not None
    assert reason_to_refuse(request, ["broker.corp.EXAMPLE"]) is None


def test_a_wildcard_given_to_the_emulator_stands_for_one_label() -> None:
    names = ["*.Example.test"]
    assert reason_to_refuse(asked(host="a.example.test:5672"), names) is None
    assert reason_to_refuse(asked(host="example.test:5672"), names) is not None
    assert reason_to_refuse(asked(host="a.b.example.test:5672"), names) is not None


@pytest.mark.parametrize("origin", ["http://localhost:5672", "https://LOCALHOST:5672"])
def test_the_own_page_may_ask(origin: str) -> None:
    assert reason_to_refuse(asked(origin=origin, sec_fetch_site="same-origin")) is None


@pytest.mark.promise("emulator.web-pages")
@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://localhost:8080", "http://localhost", "localhost:5672", ""]
)
def test_other_pages_may_not(origin: str) -> None:
    assert reason_to_refuse(asked(origin=origin)) is not None


@pytest.mark.promise("emulator.web-pages")
@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_other_pages_may_not_load_it_into_themselves(site: str) -> None:
    assert reason_to_refuse(asked("GET", sec_fetch_site=site, sec_fetch_mode="no-cors")) is not None
    assert reason_to_refuse(asked("POST", sec_fetch_site=site, sec_fetch_mode="navigate")) is not None


def test_a_link_from_elsewhere_may_be_followed() -> None:
    assert reason_to_refuse(asked("GET", sec_fetch_site="cross-site", sec_fetch_mode="navigate")) is None


def test_programs_that_are_no_browsers_may_ask() -> None:
    assert reason_to_refuse(asked()) is None


def test_host_is_separated_from_the_port() -> None:
    assert host_of("LocalHost:5672") == "localhost"
    assert host_of("[2001:DB8::1]:80") == "2001:db8::1"
    assert is_local_name("2001:db8::1")
    assert not is_local_name("2001:db8::1.example")
