"""Which requests of web browsers are let in to the page and the control API. What other programs ask is not concerned.

A browser carries out what any web page tells it, also towards servers on its user's own machine. Two checks keep other
pages out:

1. A request that another page has made says so, in `Origin` or `Sec-Fetch-Site`: it is refused.
2. A name on the internet may be made to lead to this machine, so that another page counts as this one (DNS rebinding).
   So the host that the browser believes to talk to must be a name that nobody on the internet can have: `localhost` and
   names below it, an address, a name of one word, as in a network of containers, or one that the emulator was given.
"""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import ip_address
from typing import Final

from sbclient.emulator.net.http_messages import Request

_OWN_SITES: Final = ("same-origin", "none")


def reason_to_refuse(request: Request, own_names: Collection[str] = ()) -> str | None:
    """Why a request is not answered; None = it is.

    Args:
        own_names: hosts, besides those that are always this machine.
    """
    host = host_of(request.authority)
    if not is_local_name(host) and host not in {name.casefold() for name in own_names}:
        return (
            f"this emulator does not go by the name {host[:100]!r}: open it as localhost, or start it with "
            "--tls-name and that name"
        )
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site", "none")
    if origin is not None and origin.partition("://")[2].casefold() != request.authority.casefold():
        return "another web page has asked for this: only the emulator's own page may"
    if site not in _OWN_SITES and not _is_followed_link(request):
        return "another web page has asked for this: only the emulator's own page may"
    return None


def host_of(authority: str) -> str:
    """The host in `host:port`, in lower case, an IPv6 address without its brackets."""
    text = authority.strip().casefold()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].rstrip(".")


def is_local_name(host: str) -> bool:
    """Whether a host is an address, or a name that nobody on the internet can have."""
    if "." not in host and ":" not in host:
        return True
    if host.endswith(".localhost") or host == "host.docker.internal":
        return True
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _is_followed_link(request: Request) -> bool:
    """Whether somebody came here by a link on another page: he sees this page then, and the other one does not."""
    return request.headers.get("sec-fetch-mode") == "navigate" and request.method in ("GET", "HEAD")
