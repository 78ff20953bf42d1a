"""Rejects requests that other web pages make to an HTTP port, WebSockets included. Other programs are not affected.

Any web page can make a browser send requests, also to servers on the machine of its user. Two checks reject them:

1. Cross-site requests: `Origin` or `Sec-Fetch-Site` names another site.
2. DNS rebinding: a name on the internet may resolve to this machine, so that another page counts as the same site. The
   `Host` must therefore be a name of this machine for itself, such as `localhost`, or a name that the server was given.
   A server that other machines can reach also accepts addresses and names without a dot, as in a network of
   containers: neither can be registered on the internet.
"""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import ip_address
from typing import Final

from sbclient.emulator.net.http_messages import Request

_OWN_SITES: Final = ("same-origin", "none")


def reason_to_refuse(request: Request, own_names: Collection[str] = (), *, is_exposed: bool = False) -> str | None:
    """The reason to reject a request; None = accept it.

    Args:
        own_names: host names besides those that are always local; `*.example.test` stands for one more label, as in a
            certificate.
        is_exposed: whether other machines may reach the server.
    """
    host = host_of(request.authority)
    is_known = is_local_name(host) if is_exposed else is_loopback_name(host)
    own = {name.casefold() for name in own_names}
    if not is_known and own.isdisjoint((host, f"*.{host.partition('.')[2]}")):
        return (
            f"the emulator does not know the host name {host[:100]!r}: use localhost, or start it with --tls-name "
            "and that name"
        )
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site", "none")
    if origin is not None and origin.partition("://")[2].casefold() != request.authority.casefold():
        return "the request comes from another web page: only the page of the emulator may send it"
    if site not in _OWN_SITES and not _is_followed_link(request):
        return "the request comes from another web page: only the page of the emulator may send it"
    return None


def host_of(authority: str) -> str:
    """The host in `host:port`, in lower case, an IPv6 address without its brackets."""
    text = authority.strip().casefold()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].rstrip(".")


def is_loopback_name(host: str) -> bool:
    """Whether a host is this machine for itself, or for its containers."""
    if host in ("localhost", "host.docker.internal") or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def is_local_name(host: str) -> bool:
    """Whether a host is an address, or a name that cannot exist on the internet."""
    if "." not in host and ":" not in host:
        return True
    try:
        ip_address(host)
    except ValueError:
        return is_loopback_name(host)
    return True


def _is_followed_link(request: Request) -> bool:
    """Whether the user followed a link on another page. Then the other page cannot read the response."""
    return request.headers.get("sec-fetch-mode") == "navigate" and request.method in ("GET", "HEAD")
