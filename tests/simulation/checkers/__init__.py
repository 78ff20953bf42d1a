"""What must hold in every run: one file for each group of invariants, all of them functions of a finished world."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from tests.simulation.checkers.accounting import check_accounting
from tests.simulation.checkers.content import check_content
from tests.simulation.checkers.counts import check_counts
from tests.simulation.checkers.duplicates import check_duplicates
from tests.simulation.checkers.failover import check_failovers
from tests.simulation.checkers.locks import check_locks
from tests.simulation.checkers.order import check_order
from tests.simulation.checkers.quarantine import check_quarantine
from tests.simulation.checkers.redirects import check_redirects
from tests.simulation.checkers.secrets import check_secrets
from tests.simulation.checkers.spans import check_spans
from tests.simulation.checkers.transactions import check_transactions
from tests.simulation.history import Violation
from tests.simulation.world import World

CHECKERS: Final[tuple[Callable[[World], Iterator[Violation]], ...]] = (
    check_accounting,
    check_content,
    check_counts,
    check_duplicates,
    check_failovers,
    check_locks,
    check_order,
    check_quarantine,
    check_redirects,
    check_secrets,
    check_spans,
    check_transactions,
)

INVARIANTS: Final[dict[str, str]] = {
    "I1": "no accepted send is lost",
    "I2": "nothing is acknowledged before it is stored",
    "I3": "a definite refusal is never stored",
    "I4": "what arrives equals what was sent; no alias and no ping is ever seen",
    "I5": "delivered to its own path only; one key, one fragment; keys, life and schedule restored",
    "I6": "every duplicate is explained",
    "I7": "with duplicate detection one copy in the window, also across a failover",
    "I8": "order inside a session",
    "I9": "order inside a fragment",
    "I10": "never delivered after expiry, and no life grows in the backlog",
    "I11": "never delivered before its time",
    "I12": "a transaction: all or nothing, one fragment, never in the backlog",
    "I13": "one valid lock for each message and session; a stale token settles nothing",
    "I14": "at the end the backlog is empty and all counters are 0",
    "I15": "everything ends within a bound of virtual time; no crash, no hang, no busy loop",
    "I16": "failover only for outage errors, after the interval without success, and until the ping",
    "I17": "counts, status and a look through a queue tell the truth",
    "I18": "limits at n-1, n, n+1",
    "I19": "a token that proves nothing, or not enough, stores and reads nothing",
    "I20": "no body in a log, error, repr or event",
    "I21": "bytes of no meaning end their own connection and nothing else",
    "I22": "delivered by one namespace, unless a send was in doubt; redirected only while the primary stays away",
}
