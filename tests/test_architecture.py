"""The laws of the architecture, checked on the syntax trees of the source files.

Each folder stands on a floor and imports only from lower floors; the files of root folders have floors of their own.
No imports form a cycle. The pure folders do no I/O and read no clock: the caller passes the time and the random
generator. That is what lets a test run an hour of outage in a millisecond, twice with the same result.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest

import sbclient

ROOT: Final = Path(__file__).parents[1]

_PICTURE: Final = (ROOT / "docs/architecture.md").read_text().split("```\n")[1]
FLOORS: Final = tuple(reversed(_PICTURE.replace("\n  ", "  ").splitlines()))
"""Folders, and files of root folders, from the lowest floor up, by their dotted name without `sbclient.`, as the page
shows them.

A file belongs to the longest name that matches it: `broker` covers `broker.sql.parser`.
"""

FLOOR_OF: Final = {name: floor for floor, names in enumerate(FLOORS) for name in names.split()}

PURE: Final = """
    amqp arguments broker delivery entities errors formats formats.description_tables formats.entity_settings
    formats.iso8601 formats.message_json formats.strict_json message options rules settings transport.base
"""
IMPURE_MODULES: Final = """
    asyncio concurrent http io logging multiprocessing os pathlib secrets select selectors signal socket ssl structlog
    subprocess tempfile tenacity threading time
"""
IMPURE_CALLS: Final = {"hash", "input", "open", "print"}  # the hash of a string differs from process to process
READ_TIME: Final = {"clock", "tasks"}
CHANCE: Final = {"uuid.uuid1", "uuid.uuid4", "uuid.getnode"}
WALL_TIME: Final = {"datetime.now", "datetime.utcnow", "datetime.today", "date.today"}
LOOP_TIME: Final = {f"asyncio.get_running_loop().{name}" for name in ("time", "call_later", "call_at")}
WAITS: Final = {"asyncio.sleep", "asyncio.timeout", "asyncio.timeout_at", "asyncio.wait_for"}
DOORS_TO_TIME: Final = ("clock", "testing.virtual_loop", "testing.virtual_test")
FOREIGN: Final = {
    "azure": "errors transport.sdk*",
    "pyspark": "sbclient_spark*",
    "pyarrow": "sbclient_spark*",
    "h11": "emulator* transport.amqp.socket",
    "wsproto": "emulator* transport.amqp.socket",
    "aiohttp": "transport.sdk*",
    "ssl": "certificate emulator* transport.amqp.socket",
    "trustme": "certificate",
    "opentelemetry": "telemetry* prometheus",
    "prometheus_client": "prometheus",
}
"""Which files may import a package, as patterns with spaces between them."""


def module_name(path: Path) -> str:
    """`rules.ping` for sbclient/rules/ping.py, `rules` for its __init__.py, `sbclient` for the package itself."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[-1] == "__init__":
        parts = parts[:-1]
    if parts == ("sbclient", "__main__"):
        return "cli.__main__"  # starts the commands and has nothing of its own
    return ".".join(parts[1:] if parts[0] == "sbclient" and len(parts) > 1 else parts)


FILES: Final = {
    module_name(path): path
    for folder in ("sbclient", "sbclient_spark")
    for path in sorted((ROOT / folder).rglob("*.py"))
}


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and dotted name of each import; `from a import b` gives `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{source}.{alias.name}") for alias in node.names)


def used(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of each attribute: `uuid.uuid4`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.lineno, ast.unparse(node)


def own_module(target: str) -> str | None:
    """Return the module of this project that an imported name is or belongs to; None for foreign ones."""
    if target.split(".")[0] not in ("sbclient", "sbclient_spark"):
        return None
    name = target.removeprefix("sbclient.")
    while name not in FILES and "." in name:
        name = name.rpartition(".")[0]
    return name if name in FILES else "sbclient"


def unit_of(name: str) -> str:
    """The longest name of `FLOORS` that a module belongs to: `broker` for `broker.sql.parser`.

    Raises:
        LookupError: no floor is named for it.
    """
    unit = name
    while unit not in FLOOR_OF:
        if "." not in unit:
            raise LookupError(f"{name} has no floor: add its folder, or the file of a root folder, to FLOORS")
        unit = unit.rpartition(".")[0]
    return unit


def upward_imports(name: str, tree: ast.AST) -> Iterator[str]:
    unit = unit_of(name)
    for line, target in imported(tree):
        if target.startswith("."):
            yield f"line {line}: write the import in full: `from sbclient...`, not with dots"
        elif (
            (module := own_module(target)) is not None
            and (other := unit_of(module)) != unit
            and FLOOR_OF[other] >= FLOOR_OF[unit]
        ):
            yield (
                f"line {line}: {unit} (floor {FLOOR_OF[unit]}) imports {module} of {other} (floor {FLOOR_OF[other]}), "
                "which is not below it: move what is shared down, or pass it as an argument"
            )


def imports_of(name: str, tree: ast.AST) -> set[str]:
    """The other modules of this project that a module imports."""
    return {module for _, target in imported(tree) if (module := own_module(target)) is not None} - {name}


def types_of_owners(name: str, tree: ast.AST) -> set[str]:
    """The files of its own folder that a file imports only for type checkers: a part may name the type of its owner."""
    blocks = [node for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    return {each for block in blocks for each in imports_of(name, block) if unit_of(each) == unit_of(name)}


def import_cycle(imports: Mapping[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle, the first one repeated at the end; empty if there are none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def impurities(name: str, tree: ast.AST) -> Iterator[str]:
    if unit_of(name) not in PURE.split():
        return
    advice = f"{unit_of(name)} is pure: let the caller do it and pass the result"
    for line, target in imported(tree):
        if target.split(".")[0] in IMPURE_MODULES.split() and target != "asyncio.Future":  # the type of a port's answer
            yield f"line {line}: imports {target.split('.')[0]}; {advice}"
        if (module := own_module(target)) in READ_TIME:
            yield f"line {line}: imports {module}, which reads the time or starts tasks; {advice}"
        if target in CHANCE:
            yield f"line {line}: imports {target}; make ids from the `random.Random` that is passed in"
        if target.split(".")[0] == "random" and target != "random.Random":
            yield f"line {line}: imports {target}, the global generator; take a `Random` as an argument"
    for line, target in used(tree):
        if target in CHANCE:
            yield f"line {line}: uses {target}; make ids from the `random.Random` that is passed in"
    ports = {child for node in ast.walk(tree) if is_protocol(node) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith) or (
            isinstance(node, ast.AsyncFunctionDef) and not (node in ports and is_stub(node))
        ):
            yield f"line {node.lineno}: waits ({type(node).__name__}); {advice}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS:
            yield f"line {node.lineno}: calls {node.func.id}(); {advice}"


def is_protocol(node: ast.AST) -> bool:
    return isinstance(node, ast.ClassDef) and any(getattr(base, "id", "") == "Protocol" for base in node.bases)


def is_stub(node: ast.AsyncFunctionDef) -> bool:
    return all(isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant) for part in node.body)


def foreign_types(name: str, tree: ast.AST) -> Iterator[str]:
    for line, target in imported(tree):
        home = FOREIGN.get(target.split(".")[0])
        if home is not None and not any(fnmatch(name, pattern) for pattern in home.split()):
            yield f"line {line}: imports {target}; only {home} may: translate to our own types there"


def other_doors_to_time(name: str, tree: ast.AST) -> Iterator[str]:
    if name in DOORS_TO_TIME:
        return
    advice = "call `sbclient.clock`, so that virtual time reaches this place too"
    for line, target in imported(tree):
        if target.split(".")[0] == "time" or target in WAITS:
            yield f"line {line}: imports {target}; {advice}"
    for line, target in used(tree):
        if target in WAITS | WALL_TIME | LOOP_TIME:
            yield f"line {line}: uses {target}; {advice}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "asyncio.wait":
            yield from (
                f"line {node.lineno}: asyncio.wait(timeout=...); {advice}"
                for keyword in node.keywords
                if keyword.arg == "timeout"
            )


def broken_laws(name: str, source: str) -> list[str]:
    try:
        unit_of(name)
    except LookupError as error:
        return [str(error)]
    tree = ast.parse(source)
    laws = (upward_imports, impurities, foreign_types, other_doors_to_time)
    return list(dict.fromkeys(problem for law in laws for problem in law(name, tree)))


def test_each_file_keeps_the_laws() -> None:
    broken = {str(path.relative_to(ROOT)): broken_laws(name, path.read_text()) for name, path in FILES.items()}
    assert {path: problems for path, problems in broken.items() if problems} == {}


def test_no_imports_form_a_cycle() -> None:
    trees = {name: ast.parse(path.read_text()) for name, path in FILES.items()}
    cycle = import_cycle({name: imports_of(name, tree) - types_of_owners(name, tree) for name, tree in trees.items()})
    assert not cycle, " -> ".join(cycle)


def test_root_holds_few_files() -> None:
    """Public doors and the vocabulary; what has a subject of its own belongs into a folder."""
    assert len(list((ROOT / "sbclient").glob("*.py"))) <= 20


def test_every_name_of_a_floor_covers_a_file() -> None:
    assert {unit_of(name) for name in FILES} == set(FLOOR_OF)
    assert len(FLOORS) <= 13


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("rules.ping", "from sbclient import clock\nfrom sbclient.broker.faults import Fault"),
        ("rules.ping", "from sbclient import clock"),
        ("broker.queue", "from sbclient.tasks import OwnedTasks"),
        ("rules.ping", "from sbclient.telemetry import log"),  # on the same floor
        ("rules.ping", "if TYPE_CHECKING:\n    from sbclient.client.client import ServiceBusClient"),
        ("rules.ping", "import sbclient"),
        ("rules.ping", "from .window import Window"),
        ("rules.ping", "import asyncio"),
        ("rules.ping", "from os import environ"),
        ("rules.ping", "import os.path"),
        ("rules.ping", "from uuid import uuid4"),
        ("rules.ping", "import uuid\nuuid.uuid4()"),
        ("rules.ping", "from random import random"),
        ("rules.ping", "import random"),
        ("rules.ping", "async def f(): ..."),
        ("rules.ping", "hash('a')"),
        ("rules.ping", "open('a')"),
        ("broker.sql.parser", "import time"),
        ("transport.base", "class Link(Protocol):\n    async def send(self) -> None:\n        return await x()"),
        ("client.sender", "from azure.servicebus import ServiceBusMessage"),
        ("client.sender", "from pyspark.sql import SparkSession"),
        ("client.sender", "import ssl"),
        ("client.sender", "from opentelemetry import trace"),
        ("client.sender", "import asyncio\nasyncio.sleep(1)"),
        ("client.sender", "from asyncio import timeout"),
        ("client.sender", "import asyncio\nasyncio.wait([], timeout=3)"),
        ("client.sender", "import time"),
        ("client.sender", "from datetime import datetime\ndatetime.now()"),
        ("client.sender", "import asyncio\nasyncio.get_running_loop().time()"),
        ("emulator.sas", "from sbclient.emulator.router import Router"),
        ("nowhere", ""),
    ],
)
def test_the_laws_find_what_breaks_them(name: str, source: str) -> None:
    assert broken_laws(name, source)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("rules.failover", "from sbclient.rules.ping import is_ping\nfrom sbclient.rules import backlog"),
        ("rules.ping", "from random import Random\nfrom uuid import UUID\nfrom sbclient.errors import ServiceBusError"),
        ("rules.ping", "from random import Random\ndef pick(random: Random) -> float:\n    return random.random()"),
        ("transport.base", "class Link(Protocol):\n    async def send(self) -> None:\n        'Send.'"),
        ("transport.sdk.sender", "from azure.servicebus import ServiceBusMessage"),
        ("emulator.net.tls_stream", "import ssl"),
        ("emulator.router", "from sbclient.emulator.page.files import page_file"),
        ("client.sender", "import asyncio\nasyncio.wait([])"),
        ("testing.virtual_loop", "import asyncio\nasyncio.sleep(1)"),
    ],
)
def test_the_laws_allow_what_keeps_them(name: str, source: str) -> None:
    assert broken_laws(name, source) == []


def test_a_cycle_is_found() -> None:
    assert import_cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) != []
    assert import_cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


MAY_BE_LEFT_OUT: Final = "check parents partition_key prefetch_count prefix receive_mode session transaction"


def test_a_call_of_a_port_gives_every_parameter() -> None:
    """A new parameter without a default is missed by mypy in each call, one with a default is forgotten in some."""
    methods = [
        method
        for each in ast.parse(FILES["transport.base"].read_text(encoding="utf-8")).body
        if is_protocol(each)
        for method in ast.walk(each)
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    may_be_left_out = {
        parameter.arg
        for arguments in (method.args for method in methods)
        for parameter in (
            *arguments.args[len(arguments.args) - len(arguments.defaults) :],
            *(one for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default),
        )
    }
    assert may_be_left_out == set(MAY_BE_LEFT_OUT.split()), "give it no default: then mypy names each call"


@pytest.mark.parametrize("port", ["Administration", "ReceiverLink", "SenderLink", "TransactionLink", "Transport"])
def test_every_method_of_a_port_is_called(port: str) -> None:
    """What a transport lacks mypy finds, what no caller uses it does not."""
    methods = [
        method.name
        for node in ast.parse(FILES["transport.base"].read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and node.name == port
        for method in node.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert methods
    callers = [path for name, path in FILES.items() if not unit_of(name).startswith("transport.")]
    product = "".join(path.read_text(encoding="utf-8") for path in callers)
    assert not [name for name in methods if not re.search(rf"\.{name}\b", product)], "call them, or take them away"


def test_all_is_the_truth_about_the_public_names() -> None:
    """What type checkers see, what is promised and what can be had are the same names, from the same places."""
    tree = ast.parse((ROOT / "sbclient" / "__init__.py").read_text())
    (seen_by_checkers,) = (node for node in tree.body if isinstance(node, ast.If))
    homes = {
        alias.name: f"sbclient.{module.removeprefix('sbclient.')}"
        for node in seen_by_checkers.body
        if isinstance(node, ast.ImportFrom) and (module := node.module or "")
        for alias in node.names
    }
    assert sorted(homes) == sorted(sbclient.__all__), "list in __all__ exactly what sbclient exports"
    for name, module in homes.items():
        assert getattr(sbclient, name) is getattr(import_module(module), name)
    assert all(hasattr(sbclient, name) for name in sbclient.__all__)
    assert not hasattr(sbclient, "no_such_name")
    assert set(sbclient.__all__) <= set(dir(sbclient))
