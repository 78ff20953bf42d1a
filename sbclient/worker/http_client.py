"""HTTP requests of the commands, without the client of azure-servicebus."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from email.message import Message
from http.client import HTTPException
from typing import Final
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer; a longer body is cut at `MAX_ANSWER_BYTES`."""

    status: int
    body: bytes = field(repr=False)
    headers: Message = field(repr=False)


def answer_to(request: Request, *, timeout_s: float, proxies: Mapping[str, str] | None = None) -> Answer:
    """Send a request to its host only, which follows no redirect, and return the answer with any status. Blocks.

    Args:
        timeout_s: for each step.
        proxies: addresses by scheme; None = none, those of the environment neither.

    Raises:
        OSError: there is no answer.
    """
    opener = build_opener(ProxyHandler(dict(proxies or {})), _NoRedirects)
    try:
        with opener.open(request, timeout=timeout_s) as response:
            return Answer(response.status, response.read(MAX_ANSWER_BYTES), response.headers)
    except HTTPError as error:
        with error:
            return Answer(error.code, error.read(MAX_ANSWER_BYTES), error.headers)
    except (HTTPException, ValueError) as error:
        raise ConnectionError(f"the answer is not HTTP ({type(error).__name__})") from error


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None
