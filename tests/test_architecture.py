"""The laws of the house, read from the syntax trees of its files.

The house has floors. A file imports from lower floors, or from files named before it on its own. Floors 0 to 2 are pure
rules: whoever calls them tells the time, throws the dice and does the I/O. That is what lets an outage of an hour be
tested in a millisecond, twice with the same result.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

import pytest

import sbclient

ROOT: Final = Path(__file__).parents[1]

HOUSE: Final = {
    0: "errors message options entities",
    1: """
        rules rules.entity_path rules.connection_string rules.partition_key rules.transaction_key rules.size rules.ping
        rules.backlog rules.envelope rules.failover rules.accepted rules.window rules.absence rules.spans
        rules.known_sessions         rules.option_values
        amqp.errors amqp.types amqp.decimals amqp.encode amqp.decode amqp.fields amqp.states amqp.performatives
        amqp.transfers amqp.frames amqp.sasl amqp.sections amqp.message amqp.standing amqp.batch amqp.serial
        amqp.options
        amqp.delivery amqp.link amqp.outgoing amqp.incoming amqp.unsettled amqp.windows amqp.session amqp.handshake
        amqp.connection amqp.events amqp
    """,
    2: """
        transport transport.base
        broker.sql.syntax broker.sql.like broker.sql.values broker.sql.properties broker.sql.grammar broker.sql.builder
        broker.sql.parser broker.sql.binding broker.sql.expressions broker.sql.predicates broker.sql.statements
        broker.sql broker.filters
        broker broker.profile broker.faults broker.policy broker.descriptions broker.deadlines broker.deduplication
        broker.headers broker.entry broker.session broker.storage broker.locks broker.fragment broker.placement
        broker.front_end broker.entity broker.rule broker.topic broker.admission broker.directory broker.forwarding
        broker.transactions broker.throttle broker.door broker.pings broker.rulebook broker.management broker.namespace
    """,
    3: "clock metrics prometheus tracing telemetry log tasks pace broker.lines broker.host",
    4: """
        transport.memory_connection transport.memory_sender transport.memory_receiver transport.memory_administration
        transport.memory server server.certificate
        transport.azure_errors transport.azure_message transport.azure_tracing transport.azure_link
        transport.azure_payload transport.azure_received transport.azure_settling transport.azure_sender
        transport.azure_receiver transport.azure_entities transport.azure_administration transport.azure
        server.stream server.turn server.wire_faults server.sas server.event_feed server.context
        server.amqp server.amqp.address server.amqp.conditions server.amqp.grants server.amqp.peer server.amqp.delivery
        server.amqp.settling server.amqp.sender_link server.amqp.receiver_link server.amqp.request_response
        server.amqp.cbs server.amqp.arguments server.amqp.rules server.amqp.management server.amqp.coordinator
        server.amqp.attach server.amqp.connection
        server.xml_text server.atom_values server.atom_rules server.atom_descriptions server.atom
        server.http_messages server.http server.management_paths server.management_refusals server.management_api
        server.message_store server.message_words server.messages_api server.namespace_state server.fault_words
        server.control_api server.fault_states server.overview server.pairs_seen server.lookout server.watch_stream
        server.watch_api server.neighbours server.browsers server.page_files server.health server.front
        server.socket_stream server.http_port server.tls_stream server.websocket_stream server.listener
        server.located_json server.config_entities server.config_values server.config server.namespace_choice
    """,
    5: "transport.choice retry provisioning pair core emulator deviations",
    6: """
        outgoing batch transaction transaction_keys outbox diversion session_order sender lock_renewer receiver pinger
        syphon_status sighting backlog_source destination destinations syphon_share
        resting_sessions session_choice session_source syphon backlog
    """,
    7: """
        administration client
        worker worker.settings worker.settings_file worker.configuration worker.readiness worker.systemd
        worker.inspection worker.reachability worker.dry_run worker.service worker.http_api
        testing.virtual_loop testing.ambient testing.namespaces testing.leftovers
        testing.served testing sbclient pytest_plugin
    """,
    8: """
        cli.early cli.json_values cli.progress cli.common cli.records cli.outage cli.message_json cli.failed_file
        cli.feed cli.shipment cli.send cli.source cli.reception cli.receive cli.peek cli.admin_report cli.admin
        cli.backlog_report cli.backlog cli.demo_page cli.demo cli.syphon cli.emulator cli.app cli
        sbclient_spark.option_table sbclient_spark.connection_options sbclient_spark.message_ids
        sbclient_spark.write_options sbclient_spark.read_options sbclient_spark.variants sbclient_spark.json_values
        sbclient_spark.columns sbclient_spark.rows sbclient_spark.schema
        sbclient_spark.credentials sbclient_spark.bad_records sbclient_spark.reports sbclient_spark.worker_clients
        sbclient_spark.destination_check sbclient_spark.partition_writer sbclient_spark.write_task
        sbclient_spark.job_description sbclient_spark.reader sbclient_spark.source sbclient_spark.reported_write
        sbclient_spark.drain
        sbclient_spark.preparation sbclient_spark.java sbclient_spark
    """,
}
"""Every file by its module name without `sbclient.`; a name may stand here before its file exists."""

FLOORS: Final = {name: (floor, place) for floor, names in HOUSE.items() for place, name in enumerate(names.split())}

TOP_PURE_FLOOR: Final = 2
MAX_LINES: Final = 600
IMPURE_MODULES: Final = """
    asyncio concurrent http io logging multiprocessing os pathlib secrets select selectors signal socket ssl structlog
    subprocess tempfile tenacity threading time
"""
IMPURE_CALLS: Final = {"hash", "input", "open", "print"}  # the hash of a string differs from process to process
CHANCE: Final = {"uuid.uuid1", "uuid.uuid4", "uuid.getnode"}
WALL_TIME: Final = {"datetime.now", "datetime.utcnow", "datetime.today", "date.today"}
LOOP_TIME: Final = {f"asyncio.get_running_loop().{name}" for name in ("time", "call_later", "call_at")}
WAITS: Final = {"asyncio.sleep", "asyncio.timeout", "asyncio.timeout_at", "asyncio.wait_for"}
DOORS_TO_TIME: Final = ("clock", "testing.virtual_loop", "testing.ambient")
FOREIGN: Final = {
    "azure": "transport.azure*",
    "pyspark": "sbclient_spark*",
    "pyarrow": "sbclient_spark*",
    "h11": "server*",
    "wsproto": "server*",
    "ssl": "server*",
    "trustme": "server*",
    "opentelemetry": "metrics prometheus tracing",
    "prometheus_client": "prometheus",
}
"""Which files may import a package, as patterns with spaces between them."""


def module_name(path: Path) -> str:
    """`rules.ping` for sbclient/rules/ping.py, `rules` for its __init__.py, `sbclient` for the package itself."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[-1] == "__init__":
        parts = parts[:-1]
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
    """The module of this house that an imported name is, or lives in; None for foreign ones."""
    if target.split(".")[0] not in ("sbclient", "sbclient_spark"):
        return None
    name = target.removeprefix("sbclient.")
    while name not in FLOORS and name not in FILES:
        name = name.rpartition(".")[0] or "sbclient"
    return name


def upward_imports(name: str, tree: ast.AST) -> Iterator[str]:
    for line, target in imported(tree):
        module = own_module(target)
        if target.startswith("."):
            yield f"line {line}: write the import in full: `from sbclient...`, not with dots"
        elif module is not None and module not in FLOORS:
            yield f"line {line}: imports {module}, which has no floor yet: add it to HOUSE, before {name}"
        elif module is not None and FLOORS[module] >= FLOORS[name]:
            yield (
                f"line {line}: {name} (floor {FLOORS[name][0]}) imports {module} (floor {FLOORS[module][0]}), which is "
                "not below or before it: move what is shared down, or hand it in as an argument"
            )


def impurities(name: str, tree: ast.AST) -> Iterator[str]:
    if FLOORS[name][0] > TOP_PURE_FLOOR:
        return
    advice = f"floors 0 to {TOP_PURE_FLOOR} are pure: let the caller do it and hand in the result"
    for line, target in imported(tree):
        if target.split(".")[0] in IMPURE_MODULES.split():
            yield f"line {line}: imports {target.split('.')[0]}; {advice}"
        if target in CHANCE:
            yield f"line {line}: imports {target}; make ids from the `random.Random` that is handed in"
        if target.split(".")[0] == "random" and target != "random.Random":
            yield f"line {line}: imports {target}, the global generator; take a `Random` as an argument"
    for line, target in used(tree):
        if target in CHANCE:
            yield f"line {line}: uses {target}; make ids from the `random.Random` that is handed in"
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
    advice = "take a `sbclient.clock.Clock`, so that virtual time reaches this place too"
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
    if name not in FLOORS:
        return [f"no floor: add {name!r} to HOUSE in tests/test_architecture.py, after everything that it imports"]
    tree = ast.parse(source)
    laws = (upward_imports, impurities, foreign_types, other_doors_to_time)
    broken = list(dict.fromkeys(problem for law in laws for problem in law(name, tree)))
    if (lines := source.count("\n")) > MAX_LINES:
        broken.append(f"{lines} lines, {MAX_LINES} are allowed: ask which noun hides inside and give it its own file")
    return broken


@pytest.mark.parametrize("name", FILES)
def test_file_keeps_the_laws(name: str) -> None:
    broken = broken_laws(name, FILES[name].read_text())
    assert not broken, f"{FILES[name].relative_to(ROOT)}:\n  " + "\n  ".join(broken)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("rules.ping", "from sbclient.rules.failover import is_outage"),  # later on its own floor
        ("rules.ping", "from sbclient.rules import failover"),
        ("rules.ping", "from sbclient.clock import Clock"),  # a higher floor
        ("rules.ping", "if TYPE_CHECKING:\n    from sbclient.client import ServiceBusClient"),
        ("rules.ping", "import sbclient"),
        ("rules.ping", "from .size import encoded_size"),
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
        ("transport.base", "class Link(Protocol):\n    async def send(self) -> None:\n        return await x()"),
        ("sender", "from azure.servicebus import ServiceBusMessage"),
        ("client", "from pyspark.sql import SparkSession"),
        ("client", "import ssl"),
        ("sender", "from opentelemetry import trace"),
        ("sender", "import asyncio\nasyncio.sleep(1)"),
        ("sender", "from asyncio import timeout"),
        ("sender", "import asyncio\nasyncio.wait([], timeout=3)"),
        ("sender", "import time"),
        ("sender", "from datetime import datetime\ndatetime.now()"),
        ("sender", "import asyncio\nasyncio.get_running_loop().time()"),
        ("sender", "x = 1\n" * (MAX_LINES + 1)),
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
        ("transport.azure", "from azure.servicebus import ServiceBusMessage"),
        ("server", "import ssl"),
        ("sender", "import asyncio\nasyncio.wait([])"),
        ("testing.virtual_loop", "import asyncio\nasyncio.sleep(1)"),
    ],
)
def test_the_laws_allow_what_keeps_them(name: str, source: str) -> None:
    assert broken_laws(name, source) == []


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
    assert homes == {name: f"sbclient.{module}" for name, module in sbclient._HOME_OF.items()}
    assert all(hasattr(sbclient, name) for name in sbclient.__all__)
    assert not hasattr(sbclient, "no_such_name")
    assert set(sbclient.__all__) <= set(dir(sbclient))
