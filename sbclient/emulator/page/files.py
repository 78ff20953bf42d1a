"""The files of the page, with headers that forbid it to load anything from other sites."""

from __future__ import annotations

import json
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Final

from sbclient.emulator.net.http_messages import TEXT, Response
from sbclient.entities import (
    CORRELATION_FIELDS,
    SETTABLE_STATUS,
    SETTINGS,
    EntityKind,
    EntitySetting,
    EntityStatus,
    settings_of,
)
from sbclient.formats.entity_settings import NOT_SET_AS_TEXT, value_text

FOLDER: Final = Path(__file__).with_name("static")
INDEX: Final = "index.html"
SETTINGS_FILE: Final = "settings.js"
"""The file that is made of the settings of entities."""

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
    if path is None and name != SETTINGS_FILE:
        return Response(404, b"the file does not exist", TEXT)
    body = settings_script().encode() if path is None else path.read_bytes()
    return Response(200, body, _TYPES[name[name.rindex(".") :]], HEADERS)


@cache
def _files() -> dict[str, Path]:
    return {path.name: path for path in FOLDER.iterdir() if path.suffix in _TYPES}


def settings_script() -> str:
    """Return the fields of the forms of queues, topics, subscriptions and correlation filters."""
    types = {kind: settings_of(kind) for kind in (EntityKind.QUEUE, EntityKind.TOPIC, EntityKind.SUBSCRIPTION)}
    kinds = {name: [kind for kind in types if name in types[kind]] for name in SETTINGS if name not in NOT_SET_AS_TEXT}
    rows = [
        _named(name) | {"kinds": having, "about": SETTINGS[name].about} | _input(SETTINGS[name], types[having[0]][name])
        for name, having in kinds.items()
    ]
    return "".join(
        f"export const {name} = {json.dumps(value, indent=2)};\n"
        for name, value in (("SETTINGS", rows), ("CORRELATION", list(map(_named, CORRELATION_FIELDS))))
    )


def _named(name: str) -> dict[str, Any]:
    return {"name": name, "label": name.replace("_", " ").capitalize()}


def _input(setting: EntitySetting, type_: type[Any]) -> dict[str, Any]:
    """How a setting is asked for: the initial value, and a check box, choices, or the hint in an empty field."""
    default = value_text(setting.default)
    if type_ is bool and default:
        return {"initial": default, "isCheck": True}
    if type_ is bool:
        return {"initial": "", "choices": ["", "true", "false"]}
    if issubclass(type_, Enum):
        return {"initial": default, "choices": SETTABLE_STATUS if type_ is EntityStatus else list(type_)}
    return {"initial": "", "hint": default or ("none" if type_ is str else "")}
