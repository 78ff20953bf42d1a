"""What a run is shown as: a row of a table, and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from tests.processes.run import Result

_COLUMNS: Final = (
    ("accepted", "accepted"),
    ("in doubt", "in_doubt"),
    ("refused", "refused"),
    ("open", "open"),
    ("delivered", "delivered"),
    ("dead", "dead_lettered"),
    ("LOST", "lost"),
    ("UNEXP", "unexpected"),
    ("twice, explained", "explained_duplicates"),
    ("UNEXPLAINED", "unexplained_duplicates"),
    ("again", "redelivered"),
    ("diverted", "diverted"),
)

HEAD: Final = f"{'configuration':15}  " + "  ".join(title for title, _ in _COLUMNS) + "  failovers  faults  seconds"


def as_row(result: Result) -> str:
    """The numbers of a run, under `HEAD`; what was broken on lines of its own."""
    numbers = "  ".join(f"{getattr(result.account, name):>{len(title)},}" for title, name in _COLUMNS)
    counts = f"{result.failovers:>9}  {sum(result.injected.values()):>7}  {result.seconds:>7.0f}"
    row = f"{result.name:15}  {numbers}  {counts}"
    broken = [f"    BROKEN {one.invariant}: {one.text}" for one in result.account.violations[:20]]
    if len(result.account.violations) > 20:
        broken.append(f"    and {len(result.account.violations) - 20} more")
    phases = ", ".join(f"{name} {span_s:g} s" for name, span_s in result.phases.items())
    return "\n".join([row, f"{'':15}  {phases}", *broken])


def as_text(results: Sequence[Result]) -> str:
    """The sums."""

    def summed(name: str) -> int:
        return sum(getattr(result.account, name) for result in results)

    injected: dict[str, int] = {}
    for result in results:
        for kind, number in result.injected.items():
            injected[kind] = injected.get(kind, 0) + number
    kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(injected.items()))
    return (
        f"\n{summed('accepted'):,} messages accepted under faults, {summed('lost')} lost, {summed('unexpected')} "
        f"unexpected, {summed('explained_duplicates')} explained duplicates, {summed('unexplained_duplicates')} "
        f"unexplained; {summed('in_doubt'):,} in doubt on the way, {summed('diverted'):,} diverted in "
        f"{sum(result.failovers for result in results)} failovers; {sum(bool(r.account.violations) for r in results)} "
        f"of {len(results)} runs broke something\nstruck: {kinds}"
    )


def as_json(result: Result) -> dict[str, Any]:
    """Everything that is known of a run but its messages."""
    said = asdict(result)
    said["faults"] = [str(fault) for fault in result.faults]
    return said
