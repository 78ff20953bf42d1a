"""Requests as the HTTP side hands them to those who answer, with documents as the SDK writes them."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import parse_qsl, unquote

from sbclient.emulator.management.atom_descriptions import SERVICE_BUS
from sbclient.emulator.management.xml import Element, read_xml
from sbclient.emulator.net.http_messages import Request
from sbclient.emulator.sas import ROOT_KEY, ROOT_KEY_NAME
from sbclient.rules.shared_access_signature import sign

HOST = "localhost:5672"
FOREVER = 4_000_000_000.0


class NoConnection:
    """A connection that stays open."""

    scheme = "http"
    front_end = 0

    async def gone(self) -> None:
        await asyncio.Event().wait()


def read_document(document: bytes) -> Element:
    """The root of an XML document, read in one step of the event loop."""
    reading = read_xml(document)
    while True:
        try:
            reading.send(None)
        except StopIteration as end:
            root: Element = end.value
            return root


def token(path: str = "", *, key_name: str = ROOT_KEY_NAME, key: str = ROOT_KEY) -> str:
    """A token for a path; without one for the namespace."""
    return sign(f"https://{HOST}/{path}".rstrip("/"), key_name, key, FOREVER)


def request(
    method: str, target: str, body: bytes | str = b"", *, authorization: str | None = None, **headers: str
) -> Request:
    """A request with a token of the namespace, unless another authorization is given; "" is none."""
    path, _, query = target.partition("?")
    fields = dict(parse_qsl(query, keep_blank_values=True))
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    given = token() if authorization is None else authorization
    if given:
        named["authorization"] = given
    return Request(
        method=method,
        segments=tuple(unquote(part) for part in path.strip("/").split("/")) if path.strip("/") else (),
        query=fields,
        headers={"host": HOST, **named},
        body=body.encode() if isinstance(body, str) else body,
        client="127.0.0.1:50123",
        connection=NoConnection(),
        raw_query=query,
    )


def described(kind: str, *fields: str, **texts: Any) -> str:
    """The body of a request that describes an entity: `described("Queue", LockDuration="PT5S")`."""
    inner = "".join([*fields, *(f"<{name}>{text}</{name}>" for name, text in texts.items())])
    return (
        f'<ns0:entry xmlns:ns0="http://www.w3.org/2005/Atom" xmlns="{SERVICE_BUS}" '
        'xmlns:i="http://www.w3.org/2001/XMLSchema-instance"><ns0:content type="application/xml">'
        f"<{kind}Description>{inner}</{kind}Description></ns0:content></ns0:entry>"
    )
