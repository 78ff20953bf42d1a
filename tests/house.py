"""Measures of how the code is built, to compare two states of it.

    python -m tests.house [--files] [--walk]

* The places of a fact: the files that name an example of it by hand. Generated parts of the documents do not count.
* The fewest places of a fact: those of the one that is named in the fewest files, which are the places that each needs.
* A file with one importer: an `__init__.py` is a door to names for users, and does not count as an importer.
* A protocol that one class implements exists only because a file cannot import the file of that class.
* A walk: the names of docs/architecture.md whose functions a warm `send_messages` over AMQP enters, in order. A stay is
  the entry of another name, a return a stay in a name that was left before, a climb a call into a higher row.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, Final

from sbclient import ServiceBusClient, ServiceBusMessage
from sbclient.entities import SETTINGS, element_name
from sbclient.options import PAIR_OPTIONS, SYPHON_LIMITS
from sbclient.worker.settings import SETTINGS as WORKER_SETTINGS
from tests.test_architecture import FILES, FLOOR_OF, FLOORS, ROOT, imports_of, is_protocol, module_name, unit_of

SMALL: Final = 150
"""Lines of a file that may be part of its only importer."""

EXAMPLES: Final[Mapping[str, str]] = {
    "a pair option": r"missing_entity_grace",
    "a worker setting": r"survey[_-]interval",
    "a Spark write option": r"retry_max_backoff_s|retryMaxBackoff",
    "an HTTP operation": r"MessagingApi\.unlock|unlocks it",
    "an operation of each transport": r"\blist_runtime\b",
    "an entity setting": r"lock_duration\b|LockDuration|lockDuration",
    "a message property": r"reply_to_session_id|ReplyToSessionId",
    "a dead-letter reason": r"DestinationNotFound|DESTINATION_NOT_FOUND",
}
DECLARED: Final[Mapping[str, Iterable[str]]] = {
    "a pair option": PAIR_OPTIONS,
    "a limit of a syphon": SYPHON_LIMITS,
    "a worker setting": [name for name, row in WORKER_SETTINGS.items() if row.origin is None],
    "an entity setting": SETTINGS,
}
"""The names of facts; in the fewest places is one about which nothing is special."""
GENERATED: Final = re.compile(r"<!-- (.+): python -m tests\.\S+ -->.*?<!-- end of \1 -->", re.S)
GENERATED_PAGES: Final = ("reference.md", "deviations.md", "syphon.toml")

Measure = tuple[str, object, list[str]]


def measures() -> Iterator[Measure]:
    """Yield name, value and the files or lines behind it."""
    texts = {path: path.read_text(encoding="utf-8") for path in FILES.values()}
    trees = {name: ast.parse(texts[path]) for name, path in FILES.items()}
    yield "lines of the product", sum(text.count("\n") for text in texts.values()), []
    tests = [path.read_text(encoding="utf-8").count("\n") for path in (ROOT / "tests").rglob("*.py")]
    yield "lines of the tests", sum(tests), []
    for fact, pattern in EXAMPLES.items():
        places = _named_in(pattern)
        yield f"places of {fact}", len(places), places
    for fact, names in DECLARED.items():
        words = {file: set(re.findall(r"[\w-]+", text)) for file, text in _written().items()}
        spellings = ({name, f"--{name.replace('_', '-')}", element_name(name)} for name in names)
        places = min(([file for file in words if words[file] & each] for each in spellings), key=len)
        yield f"fewest places of {fact}", len(places), places
    assignments = [
        f"{path.relative_to(ROOT)}: {ast.unparse(node)}"
        for name, path in FILES.items()
        for node in ast.walk(trees[name])
        if isinstance(node, ast.Assign)
        and any(isinstance(one, ast.Attribute) and one.attr == "is_in_doubt" for one in node.targets)
    ]
    yield "assignments of is_in_doubt", len(assignments), assignments
    classes = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    protocols = [each for each in classes if is_protocol(each)]
    yield "protocols", len(protocols), [each.name for each in protocols]
    alone = [each.name for each in protocols if sum(_implements(one, each, classes) for one in classes) == 1]
    yield "protocols that one class implements", len(alone), alone
    inside = [name for name, path in FILES.items() if path.name != "__init__.py"]
    importers = Counter(module for name in inside for module in imports_of(name, trees[name]))
    small = [name for name in inside if importers[name] == 1 and texts[FILES[name]].count("\n") < SMALL]
    yield f"files with one importer below {SMALL} lines", len(small), small
    yield "floors", len(FLOORS), []
    yield "files of the root", sum(path.is_file() for path in (ROOT / "sbclient").iterdir()), []
    adapters = [f"{name} -> {each}" for name in FILES for each in imports_of(name, trees[name]) if _is_up(name, each)]
    yield "imports of an adapter by the client", len(adapters), adapters


def _implements(one: ast.ClassDef, protocol: ast.ClassDef, classes: list[ast.ClassDef]) -> bool:
    return not is_protocol(one) and _members(one, classes) >= _members(protocol, classes)


def _members(one: ast.ClassDef, classes: list[ast.ClassDef]) -> set[str]:
    """The names that a class and its bases define, those that its methods set included."""
    names = {node.name for node in one.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    names |= {ast.unparse(node.target) for node in one.body if isinstance(node, ast.AnnAssign)}
    names |= {
        node.attr
        for node in ast.walk(one)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
    }
    bases = {ast.unparse(base).partition("[")[0] for base in one.bases}
    return names.union(*(_members(each, classes) for each in classes if each.name in bases and each is not one))


def _named_in(pattern: str) -> list[str]:
    return [name for name, text in _written().items() if re.search(pattern, text)]


@cache
def _written() -> dict[str, str]:
    """The texts of the product, the documents and the examples, without what is generated."""
    return {
        str(path.relative_to(ROOT)): GENERATED.sub("", path.read_text(encoding="utf-8"))
        for folder in ("sbclient", "sbclient_spark", "docs", "examples")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".py", ".md", ".toml", ".js", ".json") and path.name not in GENERATED_PAGES
    }


def _is_up(name: str, module: str) -> bool:
    return name.startswith("client.") and module.startswith(("transport.sdk", "transport.amqp"))


async def walk() -> list[tuple[str, str]]:
    """Return the caller and the callee of each call of a send, by the name in docs/architecture.md."""
    from tests.benchmarks.sending import QUEUE
    from tests.stage.counting import EmulatorProcess

    calls: list[tuple[str, str]] = []
    package = str(ROOT / "sbclient")

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(package):
            caller = frame.f_back
            while caller is not None and not caller.f_code.co_filename.startswith(package):
                caller = caller.f_back
            calls.append(("" if caller is None else caller.f_code.co_filename, frame.f_code.co_filename))

    with EmulatorProcess() as server:
        server.create_queue(QUEUE)
        async with (
            ServiceBusClient.from_connection_string(server.primary, secondary=server.secondary) as client,
            client.get_queue_sender(QUEUE) as sender,
        ):
            for _ in range(20):
                await sender.send_messages(ServiceBusMessage("x"))
            message = ServiceBusMessage("x")
            sys.setprofile(profile)
            try:
                await sender.send_messages(message)
            finally:
                sys.setprofile(None)
    return [(_unit(caller), _unit(callee)) for caller, callee in calls]


def _unit(file: str) -> str:
    return unit_of(module_name(Path(file))) if file else ""


def _walked(calls: list[tuple[str, str]]) -> Iterator[Measure]:
    entered = [callee for _, callee in calls]
    stays = [name for before, name in zip(["", *entered], entered, strict=False) if name != before]
    climbs = [f"{one} -> {other}" for one, other in calls if one and FLOOR_OF[other] > FLOOR_OF[one]]
    yield "functions of a send", len(calls), []
    yield "stays of a send", len(stays), stays
    yield "names of a send", len(set(stays)), sorted(set(stays))
    yield "climbs of a send", len(climbs), climbs
    yield "returns of a send", len(stays) - len(set(stays)), []


def main() -> None:
    """Print the measures."""
    parser = argparse.ArgumentParser(prog="python -m tests.house", description=__doc__)
    parser.add_argument("--files", action="store_true", help="print what each value counts")
    parser.add_argument("--walk", action="store_true", help="send a message through an emulator, and print its walk")
    options = parser.parse_args()
    found = list(measures()) + (list(_walked(asyncio.run(walk()))) if options.walk else [])
    for name, value, places in found:
        sys.stdout.write(f"{value:>7} {name}\n")
        if options.files:
            sys.stdout.writelines(f"            {each}\n" for each in places)


if __name__ == "__main__":
    main()
