import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbclient.errors import InvalidOperationError
from sbclient.rules.backlog import backlog_queue_names, session_backlog_queue_names
from sbclient.rules.entity_path import (
    MAX_NAME_LENGTH,
    MAX_PATH_LENGTH,
    belongs_to,
    canonical,
    check_entity_path,
    dead_letter_path,
    entity_of,
    is_entity_path,
    split_sub_queue,
    split_subscription,
    subscription_path,
    transfer_dead_letter_path,
)
from tests.rules.strategies import entity_paths

LEGAL = set(string.ascii_letters + string.digits + "._-")


@pytest.mark.parametrize(
    "path", ["orders", "a/b/c", "A.b-c_d/0", "_error", "x..y", "Subscriptions/a", "a/Subscriptions"]
)
def test_legal_paths_are_returned_as_they_are(path: str) -> None:
    assert check_entity_path(path) == path
    assert check_entity_path(path, "topic") == path
    assert is_entity_path(path)


@pytest.mark.parametrize(
    "path",
    ["", "/", "/a", "a/", "a//b", "a b", " a", "a\n", "ä", "a:b", "$cbs", "a/$management", "a/$DeadLetterQueue"]
    + [f"a{character}b" for character in "@?#*%&+"]
    + [".", "..", "a/../b", "./a", "a/.", "a\\", "\\a", "a\\..\\b"]
    + ["t/Subscriptions/s", "t/subscriptions/s", "t\\SUBSCRIPTIONS\\s", "t/Subscriptions/s/Rules/r"],
)
def test_illegal_paths_are_refused(path: str) -> None:
    assert not is_entity_path(path)
    for kind in ("queue", "topic", "subscription"):
        with pytest.raises(InvalidOperationError):
            check_entity_path(path, kind)


@pytest.mark.parametrize(
    ("kind", "most"),
    [("queue", 260), ("topic", 260), ("subscription", 50), ("rule", 50)],
)
def test_lengths_end_where_documented(kind: str, most: int) -> None:
    assert check_entity_path("x" * most, kind) == "x" * most
    with pytest.raises(InvalidOperationError):
        check_entity_path("x" * (most + 1), kind)
    assert {MAX_PATH_LENGTH, MAX_NAME_LENGTH} == {260, 50}


def test_an_error_shows_only_the_beginning_of_an_endless_path() -> None:
    with pytest.raises(InvalidOperationError) as caught:
        check_entity_path("x" * 100_000)
    assert "100000" in str(caught.value)
    assert len(str(caught.value)) < 200


def test_only_text_can_be_a_name() -> None:
    for name in (None, 5, b"orders"):
        with pytest.raises(InvalidOperationError):
            check_entity_path(name)  # type: ignore[arg-type]  # the mistake is the point


@pytest.mark.parametrize("kind", ["subscription", "rule"])
@pytest.mark.parametrize("name", ["a/b", "a\\b"])
def test_names_below_a_topic_have_no_slash(kind: str, name: str) -> None:
    with pytest.raises(InvalidOperationError):
        check_entity_path(name, kind)


def test_only_rules_begin_with_a_dollar() -> None:
    assert check_entity_path("$Default", "rule") == "$Default"
    for name, kind in (("$Default", "subscription"), ("$", "rule"), ("$$a", "rule"), ("a$", "rule")):
        with pytest.raises(InvalidOperationError):
            check_entity_path(name, kind)


def test_backlog_queues_have_legal_paths() -> None:
    names = backlog_queue_names("contoso", 2) + session_backlog_queue_names("localhost-5672", 2)
    assert all(is_entity_path(name) for name in names)


def test_a_backslash_is_a_slash_and_case_does_not_distinguish() -> None:
    assert check_entity_path("A\\b") == "A/b"
    assert canonical("A\\b/C") == canonical("a/B\\c") == "a/b/c"
    assert canonical("a/b") != canonical("a-b")


@given(entity_paths)
def test_every_path_of_legal_segments_is_legal(path: str) -> None:
    assert check_entity_path(path) == path
    assert check_entity_path(path.replace("/", "\\")) == path
    assert canonical(canonical(path)) == canonical(path) == canonical(path.upper())


@given(st.text("aB9._-/\\$ @ü", max_size=30) | st.text(max_size=10))
def test_a_path_is_legal_exactly_if_each_segment_is(path: str) -> None:
    segments = path.replace("\\", "/").split("/")
    assert is_entity_path(path) == all(set(s) <= LEGAL and s.strip(".") != "" for s in segments)


def test_paths_behind_an_entity_are_written_as_the_service_does() -> None:
    assert subscription_path("prices", "eu") == "prices/Subscriptions/eu"
    assert dead_letter_path("orders") == "orders/$DeadLetterQueue"
    assert transfer_dead_letter_path("orders") == "orders/$Transfer/$DeadLetterQueue"


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("Orders", ("Orders", None)),
        ("Orders/$DeadLetterQueue", ("Orders", "deadletter")),
        ("Orders\\$deadletterqueue", ("Orders", "deadletter")),
        ("a\\b", ("a/b", None)),
        ("t/Subscriptions/s/$DEADLETTERQUEUE", ("t/Subscriptions/s", "deadletter")),
        ("q/$Transfer/$DeadLetterQueue", ("q", "transferdeadletter")),
        ("q/$transfer\\$deadletterqueue", ("q", "transferdeadletter")),
        ("$DeadLetterQueue", ("$DeadLetterQueue", None)),
        ("q/$DeadLetterQueue/x", ("q/$DeadLetterQueue/x", None)),
    ],
)
def test_sub_queues_are_split_from_their_entity(path: str, parts: tuple[str, str | None]) -> None:
    assert split_sub_queue(path) == parts


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("prices/Subscriptions/eu", ("prices", "eu")),
        ("a\\b\\subscriptions\\S", ("a/b", "S")),
        ("prices", None),
        ("/Subscriptions/eu", None),
        ("prices/Subscriptions/", None),
        ("prices/Subscriptions/eu/x", None),
        ("Subscriptions/eu", None),
    ],
)
def test_topic_and_subscription_are_split(path: str, parts: tuple[str, str] | None) -> None:
    assert split_subscription(path) == parts


@given(entity_paths, st.text(string.ascii_letters, min_size=1, max_size=50))
def test_joined_paths_are_split_again(path: str, name: str) -> None:
    assert split_subscription(subscription_path(path, name)) == (path, name)
    assert split_sub_queue(dead_letter_path(path)) == (path, "deadletter")
    assert split_sub_queue(transfer_dead_letter_path(path)) == (path, "transferdeadletter")
    assert split_sub_queue(path) == (path, None)


@pytest.mark.parametrize(
    ("path", "entity", "belongs"),
    [
        ("q1", "Q1", True),
        ("q1/$DeadLetterQueue", "q1", True),
        ("t/Subscriptions/a", "t", True),
        ("t\\subscriptions\\a/$DeadLetterQueue", "t", True),
        ("t/Subscriptions/a", "t/Subscriptions/A", True),
        ("t/Subscriptions/a", "t/Subscriptions/b", False),
        ("t", "t/Subscriptions/a", False),
        ("q10", "q1", False),
        ("q1/x", "q1", False),
    ],
)
def test_queues_behind_an_entity_and_subscriptions_belong_to_it(path: str, entity: str, *, belongs: bool) -> None:
    assert belongs_to(path, entity) is belongs


@pytest.mark.parametrize(
    ("path", "entity"),
    [
        ("q1", "q1"),
        ("/Q1/", "q1"),
        ("q1\\x", "q1/x"),
        ("q1/$DeadLetterQueue", "q1"),
        ("q1/$Transfer/$DeadLetterQueue", "q1"),
        ("q1/$management", "q1"),
        ("a/b/Subscriptions/s", "a/b"),
        ("t/subscriptions/s/$DeadLetterQueue/$management", "t"),
        ("t/Subscriptions/s/Rules", "t"),
        ("t/Subscriptions", "t/subscriptions"),
        ("Subscriptions/a", "subscriptions/a"),
        ("$Resources/Queues", ""),
        ("", ""),
    ],
)
def test_a_part_leads_to_its_entity_and_a_longer_path_to_another(path: str, entity: str) -> None:
    assert entity_of(path) == entity


@given(entity_paths)
def test_an_entity_is_its_own(path: str) -> None:
    assert entity_of(path) == canonical(path)
    for part in (dead_letter_path(path), transfer_dead_letter_path(path), subscription_path(path, "s")):
        assert entity_of(part) == canonical(path)
