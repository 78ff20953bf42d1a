"""The options, settings, requests and reasons of the product, and the texts that a new one may make incomplete.

`members.txt` has each of them. For a new one `python -m tests.pages`, and a test until then, list the texts that speak
of all of its kind, that name two others, or that have a word of its name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from sbclient.emulator.control.api import ROUTES
from sbclient.emulator.messaging.api import ROUTES as MESSAGE_ROUTES
from sbclient.entities import SETTINGS, element_name
from sbclient.options import PAIR_OPTIONS
from sbclient.rules.syphon_reason import SyphonReason
from sbclient.worker.settings import SETTINGS as WORKER_SETTINGS
from sbclient_spark.read.options import READ_TABLE
from sbclient_spark.write.options import WRITE_TABLE
from tests.pages.constants import texts

PATH: Final = Path(__file__).with_suffix(".txt")
MOST_LINES: Final = 40
MOST_FILES: Final = 15
"""A word of a name that stands in more lines, or a member that is named in more files, says nothing about them."""

ALL: Final = "(?:all|each|every|any|no|none of the|other|further|these|which|the only|two|three|four)"


_NAMES: Final = re.compile(r'"[a-z-]+"|[\w-]+')


class Kind(NamedTuple):
    """What members of one kind are called.

    Attributes:
        names: returns the name of each member.
        nouns: of the kind, as a regular expression.
    """

    names: Callable[[], Iterable[str]]
    nouns: str


KINDS: Final[Mapping[str, Kind]] = {
    "pair option": Kind(lambda: PAIR_OPTIONS, r"options? of (?:a|the) pair|PairedNamespaceOptions"),
    "worker setting": Kind(
        lambda: [name for name, row in WORKER_SETTINGS.items() if row.origin is None],
        r"(?:settings?|options?) of (?:a|the) (?:worker|syphon)",
    ),
    "entity setting": Kind(
        lambda: SETTINGS,
        r"(?:settings?|properties|property) (?:of|by|for) (?:an|the|each|every|a) (?:entity|queue|topic|subscription)",
    ),
    "Spark option": Kind(
        lambda: {**READ_TABLE, **WRITE_TABLE}, r"options? (?:of|for) (?:a|the) (?:read|write|reader|writer|stream|job)"
    ),
    "request of the control API": Kind(
        lambda: [f"{method} {name}" for name, routes in ROUTES.items() for method in routes],
        r"(?:control API|requests?|operations?|changes?) of the (?:emulator|page)|control API",
    ),
    "request on messages": Kind(
        lambda: [f"{method} {kind}" for method, kind in MESSAGE_ROUTES],
        r"(?:requests?|operations?) (?:of|on|over|by) (?:messages?|HTTP)|REST API|HTTP API",
    ),
    "dead-letter reason": Kind(
        lambda: [each.value for each in SyphonReason], r"dead-letter(?:s|ed|ing)?\b.{0,40}\breasons?|\breasons? "
    ),
}


def text() -> str:
    """Return a line for each member."""
    return "".join(f"{kind}: {name}\n" for kind, each in KINDS.items() for name in each.names())


def additions() -> Iterator[str]:
    """Yield, for each member that the file does not have, the texts that it may make incomplete."""
    known = PATH.read_text(encoding="utf-8").splitlines()
    for line in text().splitlines():
        if line not in known:
            yield f"{line} is new. Read these texts, which speak of its kind, of others or of a word of its name:"
            yield from (f"  {place}" for place in places(*line.split(": ", 1)))


def places(kind: str, name: str) -> Iterator[str]:
    """Yield the lines that a new member may make incomplete, and the files of code that name others."""
    pages = {path: lines for path, lines in texts().items() if path != "CHANGELOG.md"}
    nouns = KINDS[kind].nouns
    of_all = re.compile(rf"\b{ALL} (?:\w+ )?(?:{nouns})|(?:{nouns}).*\b{ALL}\b", re.I)
    telling = {True: [of_all], False: [of_all]}  # in pages and elsewhere
    for words in [nouns, *(rf"\b{word}" for word in re.findall(r"[A-Z]?[a-z]{3,}", name))]:
        found = re.compile(words, re.I)
        count = Counter(path.endswith(".md") for path, lines in pages.items() for line in lines if found.search(line))
        for is_page in (True, False):
            if count[is_page] <= MOST_LINES:
                telling[is_page].append(found)
    others = {spelling: other for other in KINDS[kind].names() if other != name for spelling in _spellings(other)}
    named = {
        path: [{others[each] for each in _NAMES.findall(line) if each in others} for line in lines]
        for path, lines in pages.items()
    }
    in_file = {path: set[str]().union(*each) for path, each in named.items()}
    files = Counter(other for each in in_file.values() for other in each)
    for path, lines in pages.items():
        is_page = path.endswith(".md")
        for number, (line, members) in enumerate(zip(lines, named[path], strict=True), 1):
            if (is_page and len(members) > 1) or any(each.search(line) for each in telling[is_page]):
                yield f"{path}:{number}: {line.strip()}"
        telling_others = sorted(other for other in in_file[path] if files[other] <= MOST_FILES)
        if telling_others and not is_page:
            yield f"{path} names {', '.join(telling_others)}"


def _spellings(name: str) -> set[str]:
    """Return how texts and code write a name; none for a word of the language."""
    if " " in name:
        return {f'"{name.split()[1]}"'}
    if "_" in name:
        return {name, name.replace("_", "-"), f"--{name.replace('_', '-')}", element_name(name)}
    constant = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()
    return {name, constant} if "_" in constant else set()
