"""Random scenarios: every accepted message arrives, expires, or is dead-lettered with a reason."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sbclient.client.route import PairedRoute
from sbclient.pairing.diversion import Diversion
from sbclient.syphon.destination import Destination
from sbclient.syphon.queue_source import BacklogSource
from sbclient.syphon.session_source import SessionSource
from tests.client.accounting import played

pytestmark = pytest.mark.slow  # each seed is a long history

SEEDS = 200
GROUP = 20


@pytest.mark.parametrize("first", range(0, SEEDS, GROUP))
def test_every_message_is_accounted_for(first: int) -> None:
    failed_over = in_doubt = sent = 0
    for seed in range(first, first + GROUP):
        account = played(seed)
        assert not account.faults(), f"seed {seed}: {account.faults()}"
        failed_over += account.diverted > 0
        in_doubt += len(account.in_doubt)
        sent += len(account.accepted) + len(account.in_doubt)
    assert failed_over >= GROUP * 0.9
    assert sent >= 80 * GROUP
    assert 0 < in_doubt < sent * 0.3


def test_one_seed_has_one_history() -> None:
    for seed in (1, 2, 3):
        assert played(seed) == played(seed)


def test_one_seed_has_one_history_for_every_hash_seed() -> None:
    program = "from tests.client.accounting import played\nprint([played(seed) for seed in (1, 14, 32)])"
    histories = [
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert histories[0] == histories[1] != b""


# -- a simulation that cannot fail proves nothing: bugs that it must catch --------------------------------------------


async def _complete_before_sending(original: Callable[..., Any], self: Any, group: Any) -> Any:
    for held in list(group):
        await held.source.complete(held)
    return await original(self, group)


async def _swallow_the_failure(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> None:
    try:
        await original(self, *args, **kwargs)
    except Exception:
        return


async def _forget_what_is_refused(original: Callable[..., Any], self: Any, group: Any, *answer: Any) -> None:
    for held in group:
        await held.source.complete(held)
    await original(self, [], *answer)


async def _complete_what_is_to_be_parked(original: Callable[..., Any], self: Any, held: Any) -> bool:
    await self.complete(held)
    return True


def _forget_what_was_accepted(original: Callable[..., Any], self: Any, message: Any) -> bool:
    return False


async def _take_sessions_out_of_order(original: Callable[..., Any], self: Any, link: Any) -> float:
    receive = link.receive

    async def backwards(**kwargs: Any) -> Any:
        return (await receive(**kwargs))[::-1]

    link.receive = backwards
    return float(await original(self, link))


BUGS: list[tuple[type, str, Callable[..., Any]]] = [
    (Destination, "_transfer", _complete_before_sending),
    (Destination, "_failed", _forget_what_is_refused),
    (PairedRoute, "_send_to_primary", _swallow_the_failure),
    (BacklogSource, "park", _complete_what_is_to_be_parked),
    (BacklogSource, "was_accepted", _forget_what_was_accepted),
    (SessionSource, "_drain", _take_sessions_out_of_order),
    (Diversion, "send", _swallow_the_failure),
]


@pytest.mark.parametrize(("owner", "name", "bug"), BUGS, ids=[f"{name}-{bug.__name__}" for _, name, bug in BUGS])
def test_planted_bugs_are_caught(
    owner: type, name: str, bug: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda self, *args, **kwargs: bug(original, self, *args, **kwargs))
    for seed in range(50, 110):
        try:
            account = played(seed)
        except Exception:
            return
        if account.faults():
            return
    pytest.fail("60 seeds did not reveal the planted bug")
