"""The files of the page, with headers that forbid it to load anything from other sites."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

from sbclient.emulator.net.http_messages import TEXT, Response

FOLDER: Final = Path(__file__).with_name("static")
INDEX: Final = "index.html"

_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",  # so that text cannot become markup by mistake
        "trusted-types 'none'",
    )
)
HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def page_file(name: str) -> Response:
    """One file of the page by its name."""
    path = _files().get(name)
    if path is None:
        return Response(404, b"the file does not exist", TEXT)
    return Response(200, path.read_bytes(), _TYPES[path.suffix], HEADERS)


@cache
def _files() -> dict[str, Path]:
    return {path.name: path for path in FOLDER.iterdir() if path.suffix in _TYPES}
