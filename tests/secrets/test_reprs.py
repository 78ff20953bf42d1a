"""Generated reprs show no field that may hold a secret.

A field may hold one if its name says so, or if its type lets it hold anything. A new class, or a new field, is
looked at as soon as it is there: it hides what may be a secret, or is named here as harmless.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, Final

import pytest

PACKAGES: Final = ("sbclient", "sbclient_spark") if find_spec("pyspark") else ("sbclient",)

_WORDS: Final = """
    body connection content credential credentials data given headers key keys others password payload primary response
    sas secondary secret secrets settings signature string text token tokens value values
"""
SECRETIVE: Final = frozenset(_WORDS.split())
"""Words in the name of a field that may hold a secret."""

OPEN: Final = re.compile(r"\b(bytes|Any|object|PropertyValue|Facts)\b")
"""In the type of a field that may hold anything."""

TEXT: Final = re.compile(r"\b(str|bytes|Any|object|PropertyValue|Facts)\b")
"""In the type of a field that may hold text. Fields of other classes are checked with those classes."""

_NAMES: Final = "content_encoding content_type delivery_tag key_name partition_key primary_name txn_id"
HARMLESS: Final = frozenset(_NAMES.split())
"""Fields with such a name or type that hold no secret."""

HARMLESS_IN: Final = {
    "message.AmqpMessageProperties": {"correlation_id", "message_id"},
    "cli.progress.Amount": {"text"},  # a count
    "entities.AuthorizationRule": {"claim_value"},  # a constant
    "amqp.delivery.DispositionsReceived": {"deliveries", "link"},  # whose reprs show no content
    "amqp.errors.AmqpError": {"info"},  # of a dead letter: its reason
    "amqp.fields.Field": {"default"},  # of the protocol
    "amqp.fields.Layout": {"defaults"},
    "amqp.frames.Frame": {"performative"},
    "amqp.options.ConnectionOptions": {"properties"},  # of a connection
    "amqp.performatives.Attach": {"properties", "unsettled"},  # of a link
    "amqp.performatives.Begin": {"properties"},
    "amqp.performatives.Flow": {"properties"},
    "amqp.performatives.Open": {"properties"},
    "amqp.performatives.SaslChallenge": {"challenge"},  # text from the server
    "amqp.performatives.SaslOutcome": {"additional_data"},
    "amqp.performatives.Source": {"address", "dynamic_node_properties", "filter"},  # a path, a session id
    "amqp.performatives.Target": {"address", "dynamic_node_properties"},
    "amqp.sections.Properties": {"reply_to", "to", "user_id"},
    "amqp.broker_annotations.BrokerAnnotations": {"added_properties"},  # the reason of a dead letter
    "amqp.broker_annotations._Shared": {"annotations", "header"},
    "amqp.states.Declare": {"global_id"},
    "amqp.states.Modified": {"message_annotations"},
    "broker.admission.AdmittedMessages": {"key"},  # a key that selects a fragment
    "broker.sql.properties.SystemProperties": {"via_partition_key"},
    "broker.sql.syntax.Constant": {"value"},  # in the text of a rule
    "cli.records.Columns": {"body", "key", "others"},  # names of columns
    "entities.EntitySetting": {"config_default", "default"},
    "entities.CorrelationRuleFilter": {"properties"},  # a rule
    "entities.SqlRuleAction": {"parameters"},
    "entities.SqlRuleFilter": {"parameters"},
    "worker.diagnosis.Diagnosis": {"primary", "secondary"},  # names of namespaces
    "worker.inspection.Finding": {"text"},  # what the command prints
    "worker.dry_run.DryRun": {"primary", "secondary"},  # names of namespaces
    "worker.settings.WorkerSettings": {"primary_file", "secondary_file"},  # paths
    "pairing.status.PairStatus": {"primary", "secondary"},  # names of namespaces
    "pairing.status.PairEvent": {"facts"},  # those of a log event
    "rules.connection_string.ConnectionString": {"credential_file"},  # a path
    "sbclient_spark.options.ConnectionOptions": {"pairing"},
    "sbclient_spark.write.task.TaskResult": {"sessions"},  # digests
    "emulator.page.namespace_watcher.NamespaceSnapshot": {"facts", "rows"},  # what the page shows of an entity
    "emulator.page.namespace_watcher.Snapshot": {"pairs", "story"},
    "emulator.page.namespace_watcher.ClientReport": {"pairs", "story"},
    "rules.refusal.OngoingError": {"text"},  # of an error, which holds no secret
    "transport.sdk.sender._Lane": {"link"},
    "settings.table.Setting": {"default"},
    "worker.settings_file.SettingsFile": {"values"},  # the file rejects secrets
    "arguments.kinds.Kind": {"types"},  # classes
    "syphon.source.InFlight": {"key"},  # a session id or partition key
}
"""The same for single classes."""

IS_CONTENT: Final = {
    "amqp.types.Described": "a value of the wire, as str and bytes are",
    "amqp.types.Array": "a value of the wire",
}
"""Classes whose purpose is to show their content, like `str`."""


def classes() -> Iterator[type]:
    for package in PACKAGES:
        root = importlib.import_module(package)
        for found in pkgutil.walk_packages(root.__path__, f"{package}."):
            if found.name.endswith(".__main__"):
                continue  # it runs the command
            module = importlib.import_module(found.name)
            for kind in vars(module).values():
                if inspect.isclass(kind) and kind.__module__ == found.name:
                    yield kind


def suspicious_fields(kind: type) -> set[str]:
    """The fields that a generated repr shows and that may hold a secret."""
    if dataclasses.is_dataclass(kind) and vars(kind)["__dataclass_params__"].repr:
        fields = {field.name: str(field.type) for field in dataclasses.fields(kind) if field.repr}
    elif issubclass(kind, tuple) and hasattr(kind, "_fields"):
        fields = {name: str(kind.__annotations__.get(name)) for name in kind._fields}
    else:
        return set()
    return {
        name
        for name, hint in fields.items()
        if TEXT.search(hint)
        and not hint.startswith(("Callable", "ForwardRef('Callable"))
        and (OPEN.search(hint) or SECRETIVE.intersection(name.split("_")))
    }


def planted(kind: Any) -> Any:
    """Return an instance of a class, made without its checks, with a canary in every field."""
    if dataclasses.is_dataclass(kind):
        types = {field.name: str(field.type) for field in dataclasses.fields(kind)}
    else:
        types = {name: str(kind.__annotations__.get(name)) for name in kind._fields}
    values = {name: _canary(name, hint) for name, hint in types.items()}
    if issubclass(kind, tuple):
        return kind._make(values.values())
    made = object.__new__(kind)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def _canary(name: str, hint: str) -> Any:
    text = f"canary-{name}."
    return {"name": text} if re.search(r"\b(Mapping|dict)\b", hint) else text


def name_of(kind: type) -> str:
    return f"{kind.__module__.removeprefix('sbclient.')}.{kind.__qualname__}"


@pytest.fixture(scope="module")
def suspicious() -> list[type]:
    """The classes whose generated repr may show a secret."""
    return [kind for kind in classes() if suspicious_fields(kind) and name_of(kind) not in IS_CONTENT]


@pytest.mark.promise("client.secrets")
def test_generated_reprs_show_only_harmless_fields(suspicious: list[type]) -> None:
    assert len(suspicious) > 40
    leaks = {}
    for kind in suspicious:
        shown = repr(planted(kind))
        leaked = {name for name in suspicious_fields(kind) if f"canary-{name}." in shown}
        if secrets := leaked - HARMLESS - HARMLESS_IN.get(name_of(kind), set()):
            leaks[name_of(kind)] = secrets
    assert not leaks, "hide these fields (field(repr=False), or a __repr__), or name them here as harmless"


def test_listed_fields_and_classes_exist(suspicious: list[type]) -> None:
    fields_in = {name_of(kind): suspicious_fields(kind) for kind in suspicious}
    assert not set(IS_CONTENT) - {name_of(kind) for kind in classes()}
    for name, fields in HARMLESS_IN.items():
        assert name.startswith("sbclient_spark") or fields <= fields_in.get(name, set()), name
    assert set().union(*fields_in.values()) >= HARMLESS
