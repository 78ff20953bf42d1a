"""A namespace to serve, in the virtual time of each test."""

from __future__ import annotations

from random import Random

import pytest

from sbclient.clock import VirtualClock
from sbclient.emulator.context import NamespaceContext, entity_rules_of
from sbclient.emulator.faults import WireFaults
from sbclient.emulator.sas import Authorizer
from sbclient.hosting.host import BrokerHost


@pytest.fixture
def host(clock: VirtualClock) -> BrokerHost:
    """The broker."""
    return BrokerHost("contoso", clock=clock, random=Random(1))


@pytest.fixture
def context(host: BrokerHost) -> NamespaceContext:
    """The broker as its servers see it; tokens are checked."""
    authorizer = Authorizer(entity_rules=lambda path: entity_rules_of(host, path))
    return NamespaceContext(host=host, authorizer=authorizer, wire_faults=WireFaults(Random(2)))
