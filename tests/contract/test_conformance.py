"""The checks of `sbclient verify`, on every kind of namespace."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sbclient import ServiceBusClient
from sbclient.cli.conformance import CHECKS, FILTERED, SUBSCRIPTION, Check, Scene
from sbclient.rules.connection_string import parse_connection_string
from tests.contract.kinds import NamespaceKind


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
async def test_check_observes_the_documented_behaviour(kind: NamespaceKind, check: Check) -> None:
    connection = parse_connection_string(kind.connection_string())
    if kind.name == "sdk" and not check.is_for_sdk:
        pytest.skip("azure-servicebus has no such operation")
    if check.name == "wrong key" and connection.key is None:
        pytest.skip(f"{kind.name} has no key")
    if check.is_topic:
        entity = await kind.topic(SUBSCRIPTION, FILTERED, **check.description)
    else:
        entity = await kind.queue(**check.description)

    def with_key(key: str) -> ServiceBusClient:
        return ServiceBusClient(replace(connection, key=key), **kind.client_options())

    assert await check.run(Scene(kind.plain, entity, kind.patience_s, with_key)) == check.expected
