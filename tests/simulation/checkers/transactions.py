"""I12: what is sent in a transaction is stored whole or not at all, in one fragment, and never in the backlog."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tests.simulation.checkers.duplicates import copies_of
from tests.simulation.history import Outcome, TransactionStory, Violation, listed
from tests.simulation.world import World


def check_transactions(world: World) -> Iterator[Violation]:
    history = world.history
    copies = copies_of(world)
    deleted = {incident.path for incident in world.plan.incidents if incident.what == "delete"}
    stories: dict[tuple[str, ...], list[TransactionStory]] = defaultdict(list)
    for story in history.transactions.values():
        stories[story.uids].append(story)
    for uids, mine in stories.items():
        if history.submissions[uids[0]].path in deleted:
            continue
        counts = [len(copies.get(uid, ())) for uid in uids]
        committed = sum(story.fate is Outcome.OK for story in mine)
        possible = sum(story.fate is not Outcome.REFUSED for story in mine)
        if len(set(counts)) > 1:
            yield Violation("I12", f"a transaction of {listed(uids)} was stored in part: {counts}")
        elif not committed <= counts[0] <= possible:
            yield Violation(
                "I12", f"{listed(uids)} were stored {counts[0]} times, committed {committed} to {possible} times"
            )
        places = {number >> 48 for uid in uids for _, number, _ in copies.get(uid, ()) if number > 0}
        if len(places) > 1:
            yield Violation("I12", f"a transaction of {listed(uids)} was split over fragments {sorted(places)}")
    in_transactions = {uid for uids in stories for uid in uids}
    for one in history.attempts:
        if one.side == "secondary" and in_transactions.intersection(one.uids):
            yield Violation("I12", f"{listed(one.uids)} of a transaction went to the backlog")
