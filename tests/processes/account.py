"""The account of a run: it compares the accepted messages with the received ones.

The input is what the programs recorded before and after each step, what passed the proxies, and the injected faults.
The checks cover every promise of `../../docs`:

1. An accepted message arrives at each of its destinations, or is dead-lettered with a correct reason.
2. A message that was rejected for certain does not arrive, and every message that arrives was sent.
3. An event explains each copy beyond the first: see `explanations`.
4. With `ordering="session"` a message that was accepted before the next one was sent arrives before it.
5. With duplicate detection each message has one copy.
6. Body, id, keys and properties arrive unchanged; on a partitioned entity each key has one fragment.
7. At the end every queue is empty.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from sbclient.testing.ledger import Ledger
from tests.processes.explanations import Explanations
from tests.processes.receiving import UNWANTED
from tests.processes.record import Line
from tests.simulation.history import Violation, listed

EXPIRED: Final = "TTLExpiredException"
DEAD_LETTERS: Final = "dead letters"
BACKLOG_DEAD_LETTERS: Final = "backlog dead letters"
EARLY_S: Final = 0.001
"""Timestamps of messages are whole milliseconds."""


Histories = Mapping[tuple[str, int], Sequence[Line]]
"""The recorded lines of each program, by name and number of the process."""


@dataclass(slots=True)
class Try:
    """One send of an application; without a response it is in doubt."""

    begin: float
    program: str
    end: float = float("inf")
    outcome: str = "in doubt"


@dataclass(slots=True)
class Sent:
    """A message, with the outcome of each attempt to send it."""

    uid: str
    facts: dict[str, Any]
    group: str
    tries: list[Try] = field(default_factory=list)

    @property
    def accepted_at(self) -> float:
        """Return the time of the first accepted attempt; infinity = never."""
        return min((one.end for one in self.tries if one.outcome == "ok"), default=float("inf"))

    @property
    def is_accepted(self) -> bool:
        return any(one.outcome == "ok" for one in self.tries)

    @property
    def is_refused(self) -> bool:
        """Whether every attempt was rejected for certain."""
        return all(one.outcome == "refused" for one in self.tries)


@dataclass(slots=True)
class Arrival:
    """A received message; `copy` identifies the stored copy."""

    at: float
    program: str
    path: str
    origin: str
    facts: Line
    settlings: list[Line] = field(default_factory=list)

    @property
    def copy(self) -> tuple[str, float, int]:
        return self.path, self.facts["stored_at"], self.facts["number"]


@dataclass(slots=True)
class Account:
    """The numbers of a run, and the violations.

    Attributes:
        in_doubt: messages with at least one attempt in doubt.
        refused: messages that were rejected for certain and not sent again.
        open: messages without a known outcome.
        duplicates: the number of copies beyond the first, explained or unexplained.
        redelivered: the number of deliveries of a copy beyond its first one.
    """

    accepted: int = 0
    in_doubt: int = 0
    refused: int = 0
    open: int = 0
    delivered: int = 0
    dead_lettered: int = 0
    lost: int = 0
    unexpected: int = 0
    explained_duplicates: int = 0
    unexplained_duplicates: int = 0
    redelivered: int = 0
    diverted: int = 0
    violations: list[Violation] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The records of a run.

    Attributes:
        sending, receiving: the lines of each process, by `(program, life)`.
        expected_paths: returns the paths at which a message with the given facts must arrive.
        has_sessions, keeps_order, is_partitioned, detects_duplicates: the settings of the entities.
        left: the number of messages that remain in each queue at the end.
    """

    sending: Histories
    receiving: Histories
    explanations: Explanations
    expected_paths: Any
    has_sessions: bool = False
    keeps_order: bool = False
    is_partitioned: bool = False
    detects_duplicates: bool = False
    left: dict[str, int] = field(default_factory=dict)


def account_of(evidence: Evidence) -> Account:
    """Check the records of a run."""
    return _Judge(evidence).account()


def sent_messages(sending: Histories) -> dict[str, Sent]:
    """Return every message that an application began to send, by uid."""
    messages: dict[str, Sent] = {}
    for (program, _), lines in sending.items():
        groups: dict[str, list[str]] = {}
        for line in lines:
            if line["event"] == "sending":
                groups[line["group"]] = [facts["uid"] for facts in line["messages"]]
                for facts in line["messages"]:
                    message = messages.setdefault(facts["uid"], Sent(facts["uid"], facts, line["group"]))
                    message.tries.append(Try(line["at"], program))
            elif line["event"] == "sent":
                for uid in groups[line["group"]]:
                    last = messages[uid].tries[-1]
                    last.end, last.outcome = line["at"], line["outcome"]
    return messages


def arrivals_of(receiving: Histories) -> list[Arrival]:
    """Return every delivery with its settlements, ordered by time."""
    arrivals: list[Arrival] = []
    for (program, _), lines in receiving.items():
        held: dict[tuple[str, float, int], Arrival] = {}
        for line in lines:
            if line["event"] == "received":
                arrival = Arrival(line["at"], program, line["path"], line["origin"], line)
                held[arrival.copy] = arrival
                arrivals.append(arrival)
            elif line["event"] in ("settling", "settled"):
                held[line["path"], line["stored_at"], line["number"]].settlings.append(line)
    return sorted(arrivals, key=lambda arrival: arrival.at)


class _Judge:
    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._explanations = evidence.explanations
        self._sent = sent_messages(evidence.sending)
        self._arrivals: dict[str, list[Arrival]] = defaultdict(list)
        for arrival in arrivals_of(evidence.receiving):
            self._arrivals[arrival.facts["uid"]].append(arrival)
        self._ledger = self._compare()
        self._account = Account()

    def _compare(self) -> Ledger:
        """Return a ledger of each message at each of its destinations, and in the dead letters of the backlog."""
        ledger = Ledger()
        for uid, message in self._sent.items():
            places = [(uid, path) for path in self._evidence.expected_paths(message.facts)]
            if not message.is_refused:
                ledger.send(*places, (uid, BACKLOG_DEAD_LETTERS))
            if message.is_accepted:
                ledger.accepted.update(places)
            if any(one.origin == BACKLOG_DEAD_LETTERS for one in self._arrivals.get(uid, ())):
                ledger.dead_lettered.update(places)
        for uid, arrivals in self._arrivals.items():
            for one in arrivals:
                ledger.deliver((uid, one.origin if one.origin == BACKLOG_DEAD_LETTERS else one.path))
        return ledger

    def account(self) -> Account:
        account, sent = self._account, self._sent.values()
        account.accepted = sum(one.is_accepted for one in sent)
        account.in_doubt = sum(any(each.outcome == "in doubt" for each in one.tries) for one in sent)
        account.refused = sum(one.is_refused for one in sent)
        account.open = len(self._sent) - account.accepted - account.refused
        account.delivered = sum(
            any(one.origin not in (DEAD_LETTERS, BACKLOG_DEAD_LETTERS) for one in mine)
            for mine in self._arrivals.values()
        )
        account.lost, account.unexpected = len(self._ledger.lost), len(self._ledger.unexpected)
        account.diverted = self._explanations.diverted_count()
        for check in (
            self._lost,
            self._unexpected,
            self._changed,
            self._dead_letters,
            self._copies,
            self._deliveries,
            self._order,
            self._fragments,
            self._left,
        ):
            account.violations += check()
        return account

    def _lost(self) -> Iterator[Violation]:
        for uid, path in sorted(self._ledger.lost):
            yield Violation("I1", f"{uid} was accepted and is lost: it did not arrive at {path}")

    def _unexpected(self) -> Iterator[Violation]:
        for uid, path in sorted(self._ledger.unexpected):
            yield Violation("I3", f"{uid!r} arrived in {path}, and was not sent there or was rejected for certain")

    def _changed(self) -> Iterator[Violation]:
        """Check that each message arrives unchanged."""
        for uid, arrivals in self._arrivals.items():
            message = self._sent.get(uid)
            for arrival in arrivals if message is not None else ():
                assert message is not None
                facts, sent = arrival.facts, message.facts
                changed = [] if facts["is_whole"] else ["its body is not whole"]
                if facts["message_id"] != uid:
                    changed.append(f"its message id is {facts['message_id']!r}")
                if facts["properties"].get("color") != sent["color"]:
                    changed.append(f"its color is {facts['properties'].get('color')!r}")
                if arrival.origin != BACKLOG_DEAD_LETTERS:
                    keys = (facts["session_id"], facts["partition_key"])
                    if sent.get("key") not in keys and sent.get("key") is not None:
                        changed.append(f"its keys are {keys} and not {sent['key']!r}")
                    changed += [f"{name} is visible" for name in facts["properties"] if name.startswith("x-ms-")]
                    if "appears_at" in sent and facts["stored_at"] < sent["appears_at"] - EARLY_S:
                        changed.append(f"it came {sent['appears_at'] - facts['stored_at']:.3f} s early")
                yield from (Violation("I4", f"{uid} arrived in {arrival.path}, and {what}") for what in changed)

    def _dead_letters(self) -> Iterator[Violation]:
        """Check that each dead letter has a correct reason."""
        unwanted = {
            (uid, line["path"])
            for uid, arrivals in self._arrivals.items()
            for arrival in arrivals
            for line in arrival.settlings
            if line["mode"] == "dead_letter"
        }
        for uid, arrivals in self._arrivals.items():
            for arrival in arrivals:
                if arrival.origin not in (DEAD_LETTERS, BACKLOG_DEAD_LETTERS):
                    continue
                self._account.dead_lettered += 1
                reason = arrival.facts["reason"]
                is_expiring = uid in self._sent and "life_s" in self._sent[uid].facts
                is_unwanted = arrival.origin == DEAD_LETTERS and (uid, arrival.path) in unwanted
                if not ((reason == EXPIRED and is_expiring) or (reason == UNWANTED and is_unwanted)):
                    yield Violation(
                        "I1", f"{uid} is in the {arrival.origin} of {arrival.path} with the reason {reason!r}"
                    )

    # -- duplicates ----------------------------------------------------------------------------------------------

    def _copies(self) -> Iterator[Violation]:
        """Check that an event explains every copy beyond the first at a destination."""
        for uid, arrivals in self._arrivals.items():
            message = self._sent.get(uid)
            if message is None:
                continue
            stored: dict[str, set[Any]] = defaultdict(set)
            for arrival in arrivals:
                # A dead letter has a new sequence number; its enqueue time identifies the copy.
                stored[arrival.path].add(arrival.facts["stored_at"])
            for path, copies in stored.items():
                extra = len(copies) - 1
                if not extra:
                    continue
                if self._evidence.detects_duplicates:
                    yield Violation("I7", f"{uid} is in {path} {len(copies)} times, and duplicates are detected there")
                why_not = self._explanations.why_not(uid, message.tries, len(copies))
                if why_not:
                    self._account.unexplained_duplicates += extra
                    yield Violation("I6", f"{uid} is in {path} {len(copies)} times: {why_not}")
                else:
                    self._account.explained_duplicates += extra

    def _deliveries(self) -> Iterator[Violation]:
        """Check that a copy is redelivered only if it was abandoned or its settlement is not confirmed."""
        by_copy: dict[Any, list[Arrival]] = defaultdict(list)
        for arrivals in self._arrivals.values():
            for arrival in arrivals:
                if arrival.origin == "queue":
                    by_copy[arrival.copy].append(arrival)
        for deliveries in by_copy.values():
            for first, second in pairwise(deliveries):
                self._account.redelivered += 1
                if not self._may_come_again(first, second):
                    yield Violation(
                        "I6",
                        f"{first.facts['uid']} came again from {first.path} to {second.program} "
                        f"{second.at - first.at:.2f} s after {first.program} had settled it",
                    )

    def _may_come_again(self, first: Arrival, second: Arrival) -> bool:
        last = first.settlings[-1] if first.settlings else None
        if last is None or last["mode"] == "abandon" or last["event"] == "settling" or last["outcome"] != "ok":
            # Closing the connection releases a session at once; without sessions a message stays locked.
            until = None if self._evidence.has_sessions else first.facts["locked_until"]
            return last is not None or until is None or second.at >= until - EARLY_S
        return False

    # -- order and fragments -------------------------------------------------------------------------------------

    def _order(self) -> Iterator[Violation]:
        if not self._evidence.keeps_order:
            return
        first = {uid: arrivals[0].at for uid, arrivals in self._arrivals.items() if arrivals[0].origin == "queue"}
        sessions: dict[tuple[str, str], list[Sent]] = defaultdict(list)
        for message in self._sent.values():
            if message.uid in first and "appears_at" not in message.facts:
                sessions[message.facts["entity"], message.facts["key"]].append(message)
        for (_, key), messages in sessions.items():
            messages.sort(key=lambda one: one.tries[0].begin)
            for before, after in pairwise(messages):
                is_ordered = before.accepted_at < after.tries[0].begin and before.group != after.group
                if is_ordered and first[after.uid] < first[before.uid]:
                    yield Violation("I8", f"{after.uid} overtook {before.uid} in session {key!r}")

    def _fragments(self) -> Iterator[Violation]:
        if not self._evidence.is_partitioned:
            return
        places: dict[str, Counter[int]] = defaultdict(Counter)
        for uid, arrivals in self._arrivals.items():
            key = self._sent[uid].facts.get("key") if uid in self._sent else None
            for arrival in arrivals:
                if key is not None and arrival.origin == "queue":
                    places[key][arrival.facts["number"] >> 48] += 1
        for key, fragments in places.items():
            if len(fragments) > 1:
                yield Violation("I5", f"key {key!r} was in fragments {listed(sorted(fragments))}")

    def _left(self) -> Iterator[Violation]:
        for path, number in self._evidence.left.items():
            yield Violation("I14", f"{number} messages are left in {path}")
