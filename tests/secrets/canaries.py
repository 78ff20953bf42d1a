"""The canaries: values that stand for secrets, and the places that may show them."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Collection, Iterator
from functools import cache
from typing import Final
from urllib.parse import quote

KEY: Final = "canary-KEY-uW5vZqkT+/4711="
SECOND_KEY: Final = "canary-SECOND-uW5vZqkT+/4711="
GUESS: Final = "canary-GUESS-uW5vZqkT+/4711="
"""A key that is not valid. A mistyped key contains most of the correct one."""

SIGNATURE: Final = "canary-SIGNATURE-uW5vZqkT4711"
WEB_TOKEN: Final = "canary-WEBTOKEN-uW5vZqkT4711"
BODY: Final = "canary BODY: four thousand seven hundred and eleven, in confidence"
PROPERTY: Final = "canary PROPERTY: a name and an address"
STATE: Final = "canary STATE: where the session stands"

CANARIES: Final = {
    "the key": KEY,
    "the second key": SECOND_KEY,
    "a mistyped key": GUESS,
    "the signature": SIGNATURE,
    "the web token": WEB_TOKEN,
    "the body": BODY,
    "a property": PROPERTY,
    "the session's state": STATE,
}

MAY_SHOW: Final = {
    "body, str() and bytes() of a message": "the application requests its own message; azure-servicebus shows it too",
    "a pickle of a message": "it is the message",
    "sbclient receive and peek": "they print messages",
    "sbclient send --failed": "a file of the messages that were not accepted, to be sent again",
    "GET /$control/messages, and the page": "they show messages to holders of Manage on the namespace",
    "GET /queue of the management API": "it shows authorization rules with their keys to holders of Manage",
    "Emulator.connection_string": "programs connect with it; the command hides a given key",
    "the options that Spark sends to its executors": "they connect; keys named by variable or file are not among them",
    "records of azure.servicebus at DEBUG": "the SDK logs its frames when a program enables them",
}
"""Places that may show a secret, with the reason. No other place may show one."""


@cache
def _forms(text: str) -> tuple[str, ...]:
    raw = text.encode()
    encoded = [b64encode(b"\0" * shift + raw)[(4 if shift else 0) : -8].decode() for shift in range(3)]
    forms = {text, quote(text, safe=""), raw.hex(), json.dumps(text)[1:-1], repr(text)[1:-1], *encoded}
    return tuple(sorted(form.casefold() for form in forms))


def found_in(text: str, allowed: Collection[str] = ()) -> Iterator[str]:
    """Yield the names of the canaries that a text contains, plain or encoded."""
    folded = text.casefold()
    for name, canary in CANARIES.items():
        if name not in allowed and any(form in folded for form in _forms(canary)):
            yield name


def connection_string(endpoint: str = "sb://contoso.servicebus.windows.net/", *, key: str = KEY, more: str = "") -> str:
    return f"Endpoint={endpoint};SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey={key}{more}"
