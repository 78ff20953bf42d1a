"""The forms of the option `http_proxy`."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbclient.errors import InvalidOperationError
from sbclient.rules.http_proxy import HttpProxy, http_proxy_of


@pytest.mark.parametrize("name", ["proxy.example", "http://proxy.example", "HTTP://proxy.example/", " Proxy.Example "])
@pytest.mark.parametrize("port", [3128, "3128"])
def test_a_proxy_is_given_by_its_name_or_url(name: str, port: Any) -> None:
    assert http_proxy_of({"proxy_hostname": name, "proxy_port": port})[:2] == ("proxy.example", 3128)


def test_a_url_may_have_the_port_and_the_account() -> None:
    proxy = http_proxy_of({"proxy_hostname": "http://me:p%40ss@proxy.example:3128"})
    assert proxy == ("proxy.example", 3128, "me", "p@ss")
    assert "p@ss" not in repr(proxy)
    given = {"proxy_hostname": "http://me:p%40ss@proxy.example:3128", "username": "you", "password": "word"}
    assert http_proxy_of(given) == ("proxy.example", 3128, "you", "word")
    assert http_proxy_of(given | {"password": ""}) == ("proxy.example", 3128, "you", "p@ss")


texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1)


@given(
    st.sampled_from(["proxy.example", "10.0.0.1", "::1", "fe80::1"]), st.integers(1, 65_535), texts, texts | st.just("")
)
def test_the_url_of_a_proxy_names_the_same_proxy(host: str, port: int, username: str, password: str) -> None:
    for proxy in (HttpProxy(host, port, username, password), HttpProxy(host, port)):
        assert http_proxy_of({"proxy_hostname": proxy.url}) == proxy


@pytest.mark.parametrize("port", [0, 65_536, -1, True, 3.5, "x", None, b"3128"])
def test_a_port_is_a_number_of_16_bits(port: Any) -> None:
    with pytest.raises(InvalidOperationError):
        http_proxy_of({"proxy_hostname": "proxy.example", "proxy_port": port})


@pytest.mark.parametrize(
    "settings",
    [
        "http://CANARY:1",
        {},
        {"proxy_port": 1},
        {"proxy_hostname": "https://CANARY:1"},
        {"proxy_hostname": "http://CANARY:x"},
        {"proxy_hostname": "http://p:1/CANARY"},
        {"proxy_hostname": "CANARY", "proxy_port": 1, "username": 5},
    ],
    ids=str,
)
def test_what_is_no_address_is_rejected_without_being_shown(settings: Any) -> None:
    with pytest.raises(InvalidOperationError) as caught:
        http_proxy_of(settings)
    assert "CANARY" not in str(caught.value)
