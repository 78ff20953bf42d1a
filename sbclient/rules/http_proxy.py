"""Reads the settings of an HTTP proxy in the forms that users write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from sbclient.errors import InvalidOperationError


class HttpProxy(NamedTuple):
    """The address of an HTTP proxy, and the account for it; empty texts = none."""

    host: str
    port: int
    username: str = ""
    password: str = ""

    @property
    def url(self) -> str:
        """Its URL, with the account."""
        account = f"{quote(self.username, safe='')}:{quote(self.password, safe='')}@" if self.username else ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{account}{host}:{self.port}"

    def __repr__(self) -> str:
        return f"HttpProxy({self.host!r}, {self.port})"


def http_proxy_of(settings: Any) -> HttpProxy:
    """Return the proxy of the option `http_proxy`.

    Args:
        settings: a mapping with `proxy_hostname`, a name or the URL `http://[user:password@]name[:port]`, with
            `proxy_port` unless the URL has it, and perhaps `username` and `password`.

    Raises:
        InvalidOperationError: the address is not complete. The text does not show it: it may have a password.
    """
    if not isinstance(settings, Mapping) or not isinstance(settings.get("proxy_hostname"), str):
        raise InvalidOperationError("http_proxy must be a dict with proxy_hostname, a str, and proxy_port, an int")
    address = settings["proxy_hostname"].strip()
    try:
        parts = urlsplit(address if "://" in address else f"http://{address}")
        host, port = parts.hostname, _port_of(settings.get("proxy_port"), parts.port)
    except ValueError:
        host, port = None, None
    if not host or port is None or parts.scheme != "http" or parts.path not in ("", "/"):
        raise InvalidOperationError(
            "the address of the HTTP proxy is malformed: give the name of a host, or http://[user:password@]host, and "
            "proxy_port, 1 to 65535"
        )
    account = (
        settings.get("username") or unquote(parts.username or ""),
        settings.get("password") or unquote(parts.password or ""),
    )
    if not all(isinstance(each, str) for each in account):
        raise InvalidOperationError("username and password of http_proxy must be of type str")
    return HttpProxy(host, port, *account)


def _port_of(given: Any, in_url: int | None) -> int | None:
    """Return the port of a proxy; None if it is missing or out of its range."""
    if given is None:
        given = in_url
    if isinstance(given, str) and given.strip().isdecimal():
        given = int(given)
    is_port = isinstance(given, int) and not isinstance(given, bool) and 0 < given < 65_536
    return int(given) if is_port else None
