"""Answers of Service Bus that the owners of two SDKs have recorded, compared with those of the emulator.

`recorded_answers.json` has them by scene, as steps in their order. A description is a list of `Name=text` in the order
of its elements, with `:type` and `{children}`. A text that begins with `~` is a pattern.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any, Final
from uuid import UUID
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import pytest

from sbclient import clock
from sbclient.amqp import encode_message
from sbclient.broker.faults import Call, Operation
from sbclient.delivery import Settlement, SettleMode
from sbclient.emulator.context import NamespaceContext
from sbclient.emulator.management.api import ManagementApi
from sbclient.emulator.net.http_messages import Response
from sbclient.message import ServiceBusMessage
from tests.emulator.requests import HOST, described, request, token

_FILE: Final = json.loads(Path(__file__).with_name("recorded_answers.json").read_text(encoding="utf-8"))
_SCHEMAS: Final = {
    "xs": "http://www.w3.org/2001/XMLSchema",
    "ser": "http://schemas.microsoft.com/2003/10/Serialization/",
}
_TYPE: Final = "{http://www.w3.org/2001/XMLSchema-instance}type"
_BASE: Final = "{http://www.w3.org/XML/1998/namespace}base"
_TIME: Final = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"
_PATTERNS: Final = {"~time": _TIME, "~accessed": rf"(?!0001){_TIME}", "~positive": r"[1-9]\d*"}
_DETAIL: Final = re.compile(
    r"(?:SubCode=(\d+)\. )?(.*?) *TrackingId:\w+, SystemTracker:(.*), Timestamp:[-0-9T:]+", re.DOTALL
)
_TYPES: Final = {"entry": "application/atom+xml;type=entry;charset=utf-8"} | {
    "feed": "application/atom+xml;type=feed;charset=utf-8",
    "Error": "application/xml; charset=utf-8",
}


@pytest.mark.parametrize("scene", _FILE["scenes"])
async def test_answers_are_those_of_the_service(scene: str, context: NamespaceContext) -> None:
    api, count = ManagementApi(context), 0
    for step in _FILE["scenes"][scene]:
        await clock.sleep(1)
        if "messages" in step:
            _send(context, step["messages"])
            continue
        answer = await api.answer(_request(step))
        if "name" not in step:
            assert answer.status < 300, (step, answer.body)
            continue
        count += 1
        path = step["request"].split(" ")[1].partition("?")[0].lstrip("/")
        differences = list(_differences(_filled(step["answer"], path), answer))
        assert not differences, (step["name"], step["source"], differences, answer.body.decode())
    assert count


def _request(step: dict[str, Any]) -> Any:
    method, target, *who = step["request"].split(" ")
    body = described(step["kind"], *_elements(_text(step["sent"]))) if "kind" in step else ""
    headers = {"if_match": "*"} if method.endswith("*") else {}
    authorization = token(key_name="invalid", key="invalid") if who else None
    return request(method.rstrip("*"), target, body, authorization=authorization, **headers)


def _text(text: str) -> str:
    """A description in the file, by its name or itself, with the placeholders filled in."""
    return str(_filled(_FILE["descriptions"].get(text, text)))


def _filled(value: Any, path: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _filled(each, path) for name, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, path) for each in value]
    if not isinstance(value, str):
        return value
    known = {"host": HOST, "ns": "contoso", "path": path, "earlier": "2021-04-21T19:36:18.500Z"}
    return re.sub(r"\{(\w+)\}", lambda match: known.get(match[1], match[0]), value)


def _elements(text: str) -> Iterator[str]:
    """The XML of a description, element by element."""
    depth, start = 0, 0
    for at, character in enumerate(f"{text};"):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if character == ";" and depth == 0:
            if part := text[start:at].strip():
                yield _element(part)
            start = at + 1


def _element(text: str) -> str:
    match = re.fullmatch(r"(\w+)(?::((?:xs:|ser:)?\w+))?(?:\{(.*)\}|=(.*))?", text, re.DOTALL)
    assert match is not None, text
    name, kind, inner, value = match.groups()
    space, _, type_name = (kind or "").rpartition(":")
    attributes = f' i:type="{"y:" if space else ""}{type_name}"' if kind else ""
    attributes += f' xmlns:y="{_SCHEMAS[space]}"' if space else ""
    content = "".join(_elements(inner)) if inner is not None else escape(value or "")
    return f"<{name}{attributes}>{content}</{name}>"


def _send(context: NamespaceContext, path: str) -> None:
    """Leave one active, one dead-lettered and one scheduled message."""
    namespace, now = context.host.namespace, clock.now()
    to, _, subscription = path.partition("/")
    source = f"{to}/Subscriptions/{subscription}" if subscription else to
    namespace.send(Call(Operation.SEND, now), to, [encode_message(ServiceBusMessage(b"to dead-letter"))])
    (entry,) = namespace.receive(Call(Operation.RECEIVE, now), source, max_message_count=1)
    settlement = Settlement(SettleMode.DEAD_LETTER)
    namespace.settle(Call(Operation.SETTLE, now), source, [UUID(int=entry.token)], settlement)
    at = datetime.fromtimestamp(now + 600, UTC)
    namespace.send(
        Call(Operation.SEND, now),
        to,
        [
            encode_message(ServiceBusMessage(b"active")),
            encode_message(ServiceBusMessage(b"scheduled", scheduled_enqueue_time_utc=at)),
        ],
    )


def _differences(expected: dict[str, Any], answer: Response) -> Iterator[tuple[str, Any, Any]]:
    root = _parsed(answer.body)
    found = {
        "status": answer.status,
        "etag": "ETag" in answer.headers,
        "https": "Strict-Transport-Security" in answer.headers,
        "type": answer.content_type,
    }
    wanted = expected | {"etag": expected.get("etag", False), "https": expected.get("https", False)}
    if root is not None and _local(root) == "Error":
        match = _DETAIL.fullmatch(root.findtext("Detail", ""))
        assert match is not None
        found |= {"sub_code": match[1], "error": match[2].strip(), "tracker": match[3]}
    elif root is not None:
        found |= _atom(root)
        wanted |= {"link": found["link"] if _local(root) == "feed" and "link" not in wanted["parts"] else wanted["id"]}
        wanted |= {"name": root.tag}
        found |= {"name": root.tag}
        if "entries" in wanted:
            entries = root.findall("{*}entry")
            found["entries"] = [entry.findtext("{*}title") for entry in entries]
            assert all("next" not in (link.get("rel") or "") for link in root.findall("{*}link"))
            if "first" in wanted:
                first, base = wanted.pop("first"), entries[0].get(_BASE)
                yield from _compared(first | {"base": wanted["id"]}, _atom(entries[0]) | {"base": base})
    wanted |= {"type": _TYPES.get("" if root is None else _local(root), "")}
    yield from _compared(wanted, found)


def _compared(wanted: dict[str, Any], found: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for name in wanted:
        if name == "description":
            texts = [_text(wanted[name]).split("; "), found.get(name, "").split("; ")]
            if len(texts[0]) != len(texts[1]) or not all(map(_fits, *texts)):
                yield name, *texts
        elif not _fits(wanted[name], found.get(name)):
            yield name, wanted[name], found.get(name)


def _fits(wanted: Any, found: Any) -> bool:
    if not isinstance(wanted, str) or "~" not in wanted:
        return bool(wanted == found)
    if wanted[0] == "~" and wanted not in _PATTERNS:
        expression = wanted[1:]
    else:
        parts = re.split("(~[a-z]+)", wanted)
        expression = "".join(_PATTERNS.get(part) or re.escape(part) for part in parts)
    return re.fullmatch(expression, found or "", re.DOTALL) is not None


def _atom(element: ElementTree.Element) -> dict[str, Any]:
    content = element.find("{*}content/*")
    links = [link.get("href") for link in element.findall("{*}link") if link.get("rel") == "self"]
    found = {
        "parts": " ".join(_local(child) for child in element),
        "title": element.findtext("{*}title"),
        "id": element.findtext("{*}id"),
        "link": links[0] if links else None,
    }
    return found if content is None else found | {"description": "; ".join(map(_shown, content))}


def _shown(element: ElementTree.Element) -> str:
    kind = element.get(_TYPE)
    name = _local(element) + (f":{kind}" if kind else "")
    if len(element):
        return f"{name}{{{'; '.join(map(_shown, element))}}}"
    return f"{name}={element.text}" if element.text else name


def _parsed(body: bytes) -> ElementTree.Element | None:
    """The document, with the names of schemas for the prefixes of types."""
    prefixes, root = {}, None
    for event, item in ElementTree.iterparse(BytesIO(body), ("start-ns", "start")) if body else ():
        if event == "start-ns":
            prefixes[item[0]] = next((name for name, uri in _SCHEMAS.items() if uri == item[1]), "")
            continue
        root = item if root is None else root
        prefix, _, kind = item.get(_TYPE, "").rpartition(":")
        if prefix:
            item.set(_TYPE, f"{prefixes[prefix]}:{kind}")
    return root


def _local(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]
