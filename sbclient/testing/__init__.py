"""Support for tests and simulations: fresh namespaces, injected faults, and an event loop with virtual time.

async def main() -> None:
    pair = memory_pair(seed=1)
    async with pair.client() as client:
        pair.primary.inject(Fault(FaultKind.DOWN))
        ...

run_virtual(main())
"""

from sbclient.broker.faults import Fault, FaultKind, Operation
from sbclient.testing.leftovers import assert_no_leftovers
from sbclient.testing.namespaces import MemoryNamespace, MemoryPair, memory_namespace, memory_pair
from sbclient.testing.served import ServedPair, served
from sbclient.testing.virtual_loop import PATIENCE_S, DeadlockError, VirtualLoop, run_virtual
from sbclient.testing.virtual_test import in_virtual_time
from sbclient.transport.memory.transport import drop_memory_host

__all__ = [
    "PATIENCE_S",
    "DeadlockError",
    "Fault",
    "FaultKind",
    "MemoryNamespace",
    "MemoryPair",
    "Operation",
    "ServedPair",
    "VirtualLoop",
    "assert_no_leftovers",
    "drop_memory_host",
    "in_virtual_time",
    "memory_namespace",
    "memory_pair",
    "run_virtual",
    "served",
]
