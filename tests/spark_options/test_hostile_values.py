"""No text of an option of Spark leads anywhere but to a usable value or to an error that names the option.

A value that is taken fits every place where it is used: whole numbers have 64 bits, durations fit timers, texts can be
encoded and name an environment variable or a file. An error is short and shows no secret.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

import pytest

from sbclient.arguments.kinds import INT64
from sbclient.errors import InvalidOperationError
from sbclient.settings.table import Setting
from sbclient_spark.drain.options import DRAIN_TABLE, drain_options
from sbclient_spark.options import OPTIONS_OF_CLIENT
from sbclient_spark.read.offsets import StreamOffset
from sbclient_spark.read.options import READ_TABLE, read_options
from sbclient_spark.write.options import WRITE_TABLE, write_options

NAMESPACE: Final = "Endpoint=sb://contoso.example;SharedAccessKeyName=n;SharedAccessKey=s3cret"
SECONDARY: Final = "Endpoint=sb://backup.example;SharedAccessKeyName=n;SharedAccessKey=s3cret"
PAIR: Final = {"connectionString": NAMESPACE, "secondaryConnectionString": SECONDARY}

TEXTS: Final = {
    "empty": "",
    "spaces": "  ",
    "0": "0",
    "1": "1",
    "-1": "-1",
    "1.5": "1.5",
    "2**31": f"{2**31}",
    "2**63-1": f"{2**63 - 1}",
    "2**63": f"{2**63}",
    "300 digits": "9" * 300,
    "5000 digits": "9" * 5000,
    "1e400": "1e400",
    "nan": "nan",
    "inf": "inf",
    "-inf": "-inf",
    "-0": "-0",
    "hexadecimal": "0x10",
    "300 digits of days": f"{'9' * 300}d",
    "-1 s": "-1 s",
    "years": "P1Y",
    "1e30 d": "1e30 d",
    "long ISO duration": f"P{'9' * 20}D",
    "1 h": "1 h",
    "word": "maybe",
    "true": "TRUE",
    "NUL": f"{NAMESPACE}\0",
    "surrogate": f"{NAMESPACE}\ud800",
    "byte that is not UTF-8": "a\udcff",
    "bidi": "\u202eabc\u2066",
    "line breaks": "a\r\nb",
    "slashes": "a/../b//c",
    "commas": ",,,",
    "10**6 letters": "x" * 10**6,
    "10**6 names": "x," * 10**6,
    "URL": "http://[",
    "path": "/tmp/a",
    "first year": "0001-01-01T00:00:00+14:00",
    "last year": "9999-12-31T23:59:59-12:00",
    "date": "2026-02-30",
    "secret": NAMESPACE,
}

READERS: Final[dict[str, tuple[Mapping[str, Setting], Callable[[Mapping[str, str]], Any], dict[str, str]]]] = {
    "write": (WRITE_TABLE, write_options, {**PAIR, "queue": "orders"}),
    "read": (READ_TABLE, read_options, {**PAIR, "queue": "orders"}),
    "stream": (READ_TABLE, partial(read_options, is_streaming=True), {**PAIR, "queue": "orders"}),
    "drain": (DRAIN_TABLE, drain_options, PAIR),
}

REPLACED: Final = {
    **dict.fromkeys(("queue", "queues", "topic", "path", "entity"), ("queue",)),
    **{place: (name,) for name in PAIR for place in (name, f"{name}Env", f"{name}File")},
}
"""Options that another one excludes."""

ALSO: Final = {
    "topic": {"subscription": "eu"},
    "subscription": {"topic": "prices"},
    "txnAppId": {"txnVersion": "1"},
    "txnVersion": {"txnAppId": "job"},
    "messageIdColumns": {"messageIdMode": "keys"},
    "retryMaxBackoff": {"retryBackoff": "0"},
    "retryBackoff": {"retryMaxBackoff": "20000 d"},
}
"""Options that another one requires."""


def cases(name: str) -> Iterator[tuple[str, dict[str, str], Mapping[str, Any]]]:
    table, _, least = READERS[name]
    for option in (*table, *(f"sbclient.{each}" for each in OPTIONS_OF_CLIENT), "unknown"):
        given = {key: value for key, value in least.items() if key not in REPLACED.get(option, ())}
        if not (option == "subscription" and name == "write"):
            given |= {key: value for key, value in ALSO.get(option, {}).items() if key in table}
        if option == "subscription":
            given.pop("queue", None)
        yield option, given, table


def values_of(found: Any) -> Iterator[Any]:
    if dataclasses.is_dataclass(found):
        for each in dataclasses.fields(found):
            yield from values_of(getattr(found, each.name))
    elif isinstance(found, tuple):
        for part in found:
            yield from values_of(part)
    else:
        yield found


def is_usable(value: Any) -> bool:
    if isinstance(value, bool | None | timedelta):
        return True
    if isinstance(value, int):
        return value in INT64
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, datetime):
        return value.utcoffset() == timedelta(0)
    try:
        return "\0" not in value and value.encode(errors="surrogateescape") is not None
    except UnicodeEncodeError:
        return False


@pytest.mark.parametrize("reader", READERS)
def test_a_text_of_an_option_is_taken_or_refused_by_its_name(reader: str) -> None:
    _, read, _ = READERS[reader]
    wrong: list[str] = []
    for option, given, _ in cases(reader):
        for what, text in TEXTS.items():
            try:
                found = read({**given, option: text})
            except InvalidOperationError as error:
                shown = str(error)
                known = option.removeprefix("sbclient.").removesuffix("Env").removesuffix("File")
                names = (known, "queue") if known in ("path", "entity", "queues") else (known,)
                if not any(name.lower().replace("_", "") in shown.lower().replace("_", "") for name in names):
                    wrong.append(f"{option}={what} is refused without its name: {shown[:200]}")
                if len(shown) > (2000 if option == "unknown" else 400):
                    wrong.append(f"{option}={what}: the error has {len(shown)} characters")
                if "s3cret" in shown:
                    wrong.append(f"{option}={what} shows a secret")
                shown.encode()
            except Exception as error:
                wrong.append(f"{option}={what}: {type(error).__name__}: {str(error)[:200]}")
            else:
                found.connection.pairing_options()
                wrong += [f"{option}={what}: {value!r:.80}" for value in values_of(found) if not is_usable(value)]
    assert not wrong, "\n".join(wrong)


# -- checkpoints

OFFSETS: Final[dict[Any, dict[str, Any]]] = {
    "peek": {
        "mode": "peek",
        "namespace": "contoso",
        "batch": 3,
        "queues": {
            "a": {"created": "2026-01-01", "until": "2026-01-01T00:00:00Z", "next": {"0": 5}, "first": {"0": 1}}
        },
    },
    "receive": {
        "mode": "receive",
        "namespace": "contoso",
        "batch": 3,
        "queues": {"a": {"created": None, "numbers": "1-3,7", "open": ""}},
    },
}
JSON: Final[tuple[Any, ...]] = (
    *(None, True, -1, 2**63, 10**300, 1.5, math.nan, math.inf, "", "x", "1-", "1-99999999999", f"{2**64}", "\ud800"),
    *([], [1], {}, {"0": None}, {"0": "1"}, {"0": 1.5}, {"x": 1}, {"9" * 5000: 1}, "9" * 5000),
)


def changed(given: Any) -> Iterator[Any]:
    """Copies of a JSON value, each with another value in one place, or without it."""
    yield from JSON
    if isinstance(given, dict):
        for name, part in given.items():
            yield {key: value for key, value in given.items() if key != name}
            yield from ({**given, name: other} for other in changed(part))


@pytest.mark.parametrize("mode", OFFSETS)
def test_an_offset_of_a_damaged_checkpoint_is_read_or_refused(mode: Any) -> None:
    read = partial(StreamOffset.of_json, mode=mode, namespace="contoso", paths=["a"])
    assert read(OFFSETS[mode]).to_json() == OFFSETS[mode]
    wrong = []
    for each in changed(OFFSETS[mode]):
        try:
            found = read(each)
        except InvalidOperationError:
            continue
        except Exception as error:
            wrong.append(f"{each!r:.200}: {type(error).__name__}: {str(error)[:100]}")
            continue
        (queue,) = found.queues.values()
        numbers = (found.batch, *queue.next.items(), *(queue.first or {}).items(), *queue.numbers, *queue.open)
        flat = [part for each in numbers for part in (each if isinstance(each, tuple) else (each,))]
        if not all(type(number) is int and number in INT64 for number in flat) or read(found.to_json()) != found:
            wrong.append(f"{each!r:.200} is read as {found}")
    assert not wrong, "\n".join(wrong)
