"""A namespace in virtual time, and one that is served on real sockets, for the tests of one file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from sbclient.emulator import Emulator
from sbclient.emulator.context import NamespaceContext, entity_rules_of
from sbclient.emulator.faults import WireFaults
from sbclient.emulator.sas import Authorizer
from sbclient.hosting.host import BrokerHost


@pytest.fixture
def host() -> BrokerHost:
    """The broker."""
    return BrokerHost("contoso", random=Random(1))


@pytest.fixture
def context(host: BrokerHost) -> NamespaceContext:
    """The broker as its servers see it; tokens are checked."""
    authorizer = Authorizer(entity_rules=lambda path: entity_rules_of(host, path))
    return NamespaceContext(host=host, authorizer=authorizer, wire_faults=WireFaults(Random(2)))


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the certificate of these tests is kept."""
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture
async def emulator(certificates: Path) -> AsyncIterator[Emulator]:
    """Two namespaces on real sockets; for tests in real time."""
    async with Emulator("contoso", "contoso-backup", seed=1, certificate_directory=certificates) as served:
        yield served


@pytest.fixture
def trusted(certificates: Path) -> str:
    """The file that clients must trust to speak TLS to it."""
    return str(Emulator(certificate_directory=certificates).certificate_path)
