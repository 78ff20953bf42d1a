"""The HTTP pipeline of the administration client: what of azure-core it uses, and what it changes.

Laws:
1. A request, and the token in it, goes to the namespace only. No redirect is followed.
2. An answer has at most `MAX_ANSWER_BYTES`, is neither compressed nor in another encoding than UTF-8, and has no
   document type, whose entities could expand. Its bytes bound the memory that it needs.
3. Of the environment, only the proxies are used.

What each part of the pipeline of azure-core does here:

* `AioHttpTransport`: its session keeps no cookies and does not read `.netrc`, whose entries would replace the token.
* `RequestIdPolicy`: as it is, for the log of the service.
* `HeadersPolicy`: `ElementOrder` takes its place.
* `UserAgentPolicy`: as it is; it names the platform and the environment variable `AZURE_HTTP_USER_AGENT`.
* `ProxyPolicy`: with the proxies of the options, otherwise those of the environment.
* `ContentDecodePolicy`: as it is, but `_Transport` says that the answer is UTF-8. Among the encodings of Python are
  some that need seconds for a short text.
* `ServiceBusXMLWorkaroundPolicy`: finds nothing to do after `ElementOrder`, since it would also delete `ns1:` and
  `:ns1` from filters and metadata.
* `AsyncRedirectPolicy`: off.
* `AsyncRetryPolicy`: off. This package has retries of its own, and a `Retry-After` has no effect.
* The credential policies: as they are. A bearer token is sent only over TLS; a challenge is answered once.
* `NetworkTraceLoggingPolicy`: off, also with `logging_enable`, since it logs tokens.
* `DistributedTracingPolicy`: as it is. It does nothing unless the application traces azure-core, and records no token.
* `HttpLoggingPolicy`: as it is. It logs only the values of headers that are known to be harmless.
* `SensitiveHeaderCleanupPolicy`: not in this pipeline. Without redirects it has nothing to do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Final
from urllib.request import getproxies, proxy_bypass
from xml.etree import ElementTree

import aiohttp
from azure.core.pipeline.policies import HeadersPolicy, NetworkTraceLoggingPolicy
from azure.core.pipeline.transport import AioHttpTransport

from sbclient.entities import EntityKind
from sbclient.formats.description_tables import KINDS, TABLES
from sbclient.rules.http_proxy import http_proxy_of

MAX_ANSWER_BYTES: Final = 2 * 1024 * 1024
"""A page of 100 queues has about 300 KB."""

TIMEOUT_S: Final = 20

SERVICE_BUS: Final = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"


def pipeline_options(ssl_context: Any, verify: str | bool) -> dict[str, Any]:
    """Return the options for an administration client of the SDK.

    Args:
        ssl_context: an `ssl.SSLContext`; None = one by `verify`.
        verify: False to accept every certificate, or the path of a file of authorities.
    """
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=ssl_context if ssl_context is not None else True),
        headers={"Accept-Encoding": "identity"},
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        response_class=_LimitedResponse,
        trust_env=False,
    )
    return {
        "transport": _Transport(
            session=session, connection_timeout=TIMEOUT_S, read_timeout=TIMEOUT_S, connection_verify=verify
        ),
        "headers_policy": ElementOrder(),
        "logging_policy": NetworkTraceLoggingPolicy(logging_enable=False),
        "permit_redirects": False,
    }


def proxies_of_option(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the HTTP proxies for the option `http_proxy`."""
    address = http_proxy_of(settings).url
    return {"http": address, "https": address}


def proxies_of_environment(host: str) -> dict[str, str]:
    """Return the HTTP proxies that the system has for a host."""
    return {} if proxy_bypass(host) else getproxies()


class _Transport(AioHttpTransport):  # type: ignore[misc]  # azure-core loads it on demand, without a type
    """Reads each answer as UTF-8, whatever it claims to be."""

    async def send(self, request: Any, **options: Any) -> Any:
        response = await super().send(request, **options)
        response.encoding = "utf-8"
        return response


class _LimitedResponse(aiohttp.ClientResponse):
    """An answer within the limits of law 2."""

    async def read(self) -> bytes:
        encoding = self.headers.get("Content-Encoding", "identity")
        if encoding.lower() != "identity":
            raise self._rejected(f"is compressed ({encoding!r}), which was not asked for")
        parts, size = [], 0
        async for part in self.content.iter_any():
            parts.append(part)
            size += len(part)
            if size > MAX_ANSWER_BYTES:
                raise self._rejected(f"has more than {MAX_ANSWER_BYTES} bytes")
        body = b"".join(parts)
        try:
            text = body.decode()
        except UnicodeDecodeError as error:
            raise self._rejected("is not UTF-8") from error
        if "<!DOCTYPE" in text:
            raise self._rejected("has a document type")
        return body

    def _rejected(self, reason: str) -> aiohttp.ClientPayloadError:
        self.close()
        return aiohttp.ClientPayloadError(f"the answer of the management API {reason}")


ADDED_ELEMENTS: Final[ContextVar[Mapping[str, str]]] = ContextVar("added elements")
"""The elements that the SDK does not write, of the entity that the current task describes."""


class ElementOrder(HeadersPolicy):
    """Applies `as_service_reads`, and adds the elements that the SDK does not write.

    It takes the place of the policy for headers, which precedes the one that computes the length of the body.
    """

    def on_request(self, request: Any) -> None:
        super().on_request(request)
        if request.http_request.body:
            request.http_request.set_bytes_body(as_service_reads(request.http_request.body, ADDED_ELEMENTS.get({})))


def as_service_reads(document: bytes, added: Mapping[str, str] = MappingProxyType({})) -> bytes:
    """Return a request with its elements in the order in which the service applies them, and without their prefix.

    Args:
        added: the texts of further elements, by name.

    The SDK sends `ForwardTo`, `UserMetadata` and `ForwardDeadLetteredMessagesTo` of queues, and `UserMetadata` of
    topics and subscriptions, behind elements that they must precede. The service then ignores them. It does not accept
    a prefix of the names of elements either.
    """
    document = _ordered(document, added)
    if (declared := _PREFIX.search(document)) is None:
        return document
    prefix = declared[1] + b":"
    document = document.replace(b"xmlns:" + declared[1] + b"=", b"xmlns=", 1)
    return document.replace(b"<" + prefix, b"<").replace(b"</" + prefix, b"</")  # a text has no "<"


_PREFIX: Final = re.compile(rb'\bxmlns:([\w.-]+)="' + re.escape(SERVICE_BUS.encode()) + b'"')


def _ordered(document: bytes, added: Mapping[str, str]) -> bytes:
    """Return a request in the order of the service. Rules, which have it already, stay as they are."""
    root = ElementTree.fromstring(document)
    for described in root.iterfind("{*}content/*"):
        name = described.tag.rpartition("}")[2]
        if name not in KINDS or KINDS[name] is EntityKind.RULE:
            return document
        for element, text in added.items():
            ElementTree.SubElement(described, f"{{{SERVICE_BUS}}}{element}").text = text
        places = {f"{{{SERVICE_BUS}}}{element}": at for at, element in enumerate(TABLES[KINDS[name]])}
        elements = sorted(described, key=lambda element: places.get(element.tag, len(places)))
        if elements == list(described) and not added:
            return document
        described[:] = elements
    ordered: bytes = ElementTree.tostring(root, "utf-8", xml_declaration=True)
    return ordered
