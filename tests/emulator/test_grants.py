"""What the tokens of a connection allow together."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbclient.emulator import sas as module
from sbclient.emulator.sas import Grant, Grants
from sbclient.entities import AccessRights
from sbclient.errors import ServiceBusQuotaExceededError

SEND, LISTEN = frozenset({AccessRights.SEND}), frozenset({AccessRights.LISTEN})
NOTHING: frozenset[AccessRights] = frozenset()
NOW = 1_000.0


def grant(path: str, rights: frozenset[AccessRights] = SEND, expires_at: float = math.inf) -> Grant:
    return Grant(path, rights, expires_at)


@pytest.mark.parametrize(
    ("path", "allowed"), [("q1", SEND), ("Q1", SEND), ("q1/a", SEND), ("q10", NOTHING), ("q", NOTHING), ("", NOTHING)]
)
def test_a_token_counts_for_its_audience_and_below_by_whole_segments(
    path: str, allowed: frozenset[AccessRights]
) -> None:
    grants = Grants()
    grants.add("q1", grant("q1"))
    assert grants.rights(path, NOW) == allowed


def test_a_token_of_the_namespace_counts_everywhere() -> None:
    grants = Grants()
    grants.add("", grant(""))
    assert grants.rights("a/b/c", NOW) == SEND
    assert grants.rights("", NOW) == SEND


def test_rights_of_several_tokens_add_up() -> None:
    grants = Grants()
    grants.add("a", grant("a", SEND))
    grants.add("a/b", grant("a/b", LISTEN))
    assert grants.rights("a/b", NOW) == SEND | LISTEN
    assert grants.rights("a", NOW) == SEND


def test_a_newer_token_replaces_the_older_one() -> None:
    grants = Grants()
    grants.add("a", grant("a", SEND))
    grants.add("A", grant("a", LISTEN))
    assert grants.rights("a", NOW) == LISTEN


def test_a_token_counts_where_both_its_audience_and_its_resource_cover() -> None:
    paths = ["", "a", "a/b", "a/b/c", "ab", "c"]
    for audience, resource in product(paths, paths):
        grants = Grants()
        grants.add(audience, grant(resource))
        for path in paths:
            covered = all(not each or f"{path}/".startswith(f"{each}/") for each in (audience, resource))
            assert bool(grants.rights(path, NOW)) == covered, (audience, resource, path)


def test_a_token_that_takes_a_right_on_any_entity_away_allows_less() -> None:
    paths = ["", "a", "a/b", "c"]
    each = [grant(path, rights) for path in paths[:3] for rights in (SEND, SEND | LISTEN)]
    for older, newer, audience in product(each, each, paths[:3]):
        grants = Grants()
        grants.add(audience, older)
        before = [grants.rights(path, NOW) for path in paths]
        allows_less = grants.add(audience, newer)
        after = [grants.rights(path, NOW) for path in paths]
        assert allows_less or all(now >= then for now, then in zip(after, before, strict=True)), (older, newer)
        assert not (allows_less and older == newer)


@pytest.mark.parametrize(
    ("older", "newer", "allows_less"),
    [
        (SEND, SEND, False),
        (SEND, SEND | LISTEN, False),
        (SEND | LISTEN, SEND, True),
        (SEND, LISTEN, True),
        (LISTEN, SEND, True),
        (SEND, NOTHING, True),
    ],
)
def test_a_token_that_lacks_a_right_of_the_one_before_allows_less(
    older: frozenset[AccessRights], newer: frozenset[AccessRights], allows_less: bool
) -> None:
    grants = Grants()
    assert not grants.add("a", grant("a", older))
    assert grants.add("a", grant("a", newer)) is allows_less
    assert not grants.add("a", grant("a", newer)), "the same again"
    assert grants.add("a", grant("a/b", newer)), "for less"


def test_a_token_ends_at_its_time_and_no_earlier() -> None:
    grants = Grants()
    grants.add("a", grant("a", SEND, NOW + 10))
    grants.add("b", grant("b", SEND, NOW + 20))
    assert grants.next_expiry_at == NOW + 10
    assert grants.rights("a", NOW + 9.9) == SEND
    assert not grants.drop_expired(NOW + 9.9)
    assert grants.rights("a", NOW + 10) == NOTHING
    assert grants.drop_expired(NOW + 10)
    assert grants.next_expiry_at == NOW + 20


def test_without_a_token_there_is_no_expiry() -> None:
    assert Grants().next_expiry_at == math.inf


def test_audiences_are_bounded_and_known_ones_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_GRANTS", 1)
    grants = Grants()
    grants.add("a", grant("a"))
    grants.add("a", grant("a", LISTEN))
    with pytest.raises(ServiceBusQuotaExceededError):
        grants.add("b", grant("b"))


segments = st.lists(st.sampled_from(["a", "b", "ab"]), max_size=4).map("/".join)


@given(audiences=st.lists(segments, max_size=4), path=segments)
def test_a_path_is_covered_exactly_if_an_audience_is_a_prefix_by_segments(audiences: list[str], path: str) -> None:
    grants = Grants()
    for audience in audiences:
        grants.add(audience, grant(audience))
    parts = path.split("/") if path else []
    prefixes = {"/".join(parts[:count]) for count in range(len(parts) + 1)}
    assert bool(grants.rights(path, NOW)) is bool(prefixes.intersection(audiences))
