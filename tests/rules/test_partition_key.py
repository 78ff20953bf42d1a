from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbclient.errors import InvalidOperationError
from sbclient.message import ServiceBusMessage
from sbclient.rules.partition_key import check_batch_keys, check_keys, fragment_of, ordering_key, partition_key_of

keys = st.none() | st.sampled_from(["", "a", "b", "c"])


def message(
    session_id: str | None = None, partition_key: str | None = None, message_id: str | None = None
) -> ServiceBusMessage:
    return ServiceBusMessage(b"", session_id=session_id, partition_key=partition_key, message_id=message_id)


@given(st.text(max_size=128), st.sampled_from([1, 2, 16]))
def test_every_key_leads_to_one_of_the_fragments(key: str, count: int) -> None:
    assert 0 <= fragment_of(key, count) < count


@pytest.mark.deviation("broker.fragment-of-a-key")
@pytest.mark.parametrize(("key", "fragment"), [("", 0), ("a", 3), ("123456789", 6), ("Größe", 5), ("42", 8)])
def test_fragments_never_change_between_releases(key: str, fragment: int) -> None:
    assert fragment_of(key, 16) == fragment


def test_keys_spread_evenly() -> None:
    random = Random(1)
    spread = Counter(fragment_of(f"{random.random()}", 16) for _ in range(16_000))
    assert len(spread) == 16
    assert 850 < min(spread.values()) <= max(spread.values()) < 1150


@given(keys, keys, keys, st.booleans())
def test_to_p045_precedence_of_the_keys(
    session: str | None, partition: str | None, message_id: str | None, detects: bool
) -> None:
    found = [session or None, partition, session]  # an empty session id counts if there is no partition key
    expected = next((key for key in (*found, message_id if detects else None) if key is not None), None)
    given_message = message(session, partition, message_id)
    assert partition_key_of(given_message, requires_duplicate_detection=detects) == expected
    assert ordering_key(given_message) == next((key for key in found if key is not None), None)


def test_a_message_id_is_no_key_without_duplicate_detection() -> None:
    assert partition_key_of(message(message_id="a"), requires_duplicate_detection=False) is None
    assert partition_key_of(message(message_id="a"), requires_duplicate_detection=True) == "a"


@given(keys, keys)
def test_session_id_and_partition_key_must_not_differ(session: str | None, partition: str | None) -> None:
    if not session or partition is None or session == partition:
        check_keys(message(session, partition))
    else:
        with pytest.raises(InvalidOperationError) as caught:
            check_keys(message(session, partition))
        assert repr(session) in str(caught.value)
        assert repr(partition) in str(caught.value)


def test_duplicate_detection_needs_something_to_compare() -> None:
    for detectable in (message("a"), message(None, "a"), message(message_id="a")):
        assert check_batch_keys([detectable], requires_duplicate_detection=True) == "a"
    with pytest.raises(InvalidOperationError, match="must have either PartitionKey or MessageId"):  # seen
        check_batch_keys([message()], requires_duplicate_detection=True)
    assert check_batch_keys([message()], requires_duplicate_detection=False) is None


def test_a_batch_shares_its_key() -> None:
    batch = [message(partition_key="a", message_id="1"), message(session_id="a", message_id="2")]
    assert check_batch_keys(batch, requires_duplicate_detection=False) == "a"
    for other in (message("b"), message(None, "b"), message(message_id="a")):
        with pytest.raises(InvalidOperationError, match="distinct SessionId or PartitionKey is not supported"):  # seen
            check_batch_keys([*batch, other], requires_duplicate_detection=False)


def test_with_duplicate_detection_a_batch_shares_its_message_id() -> None:
    same = [message(partition_key="a", message_id="1")] * 2
    assert check_batch_keys(same, requires_duplicate_detection=True) == "a"
    with pytest.raises(InvalidOperationError):
        check_batch_keys([*same, message(partition_key="a", message_id="2")], requires_duplicate_detection=True)
    with pytest.raises(InvalidOperationError):
        check_batch_keys([message(message_id="1"), message(message_id="2")], requires_duplicate_detection=True)


def test_is_checked_for_every_message_of_a_batch() -> None:
    with pytest.raises(InvalidOperationError):
        check_batch_keys([message("a"), message("a", "b")], requires_duplicate_detection=False)


def test_nothing_shares_no_key() -> None:
    assert check_batch_keys([], requires_duplicate_detection=True) is None


@given(st.lists(st.builds(message, keys, keys, keys), max_size=4), st.booleans())
def test_a_batch_is_taken_exactly_if_its_messages_agree(batch: list[ServiceBusMessage], detects: bool) -> None:
    own = [partition_key_of(m, requires_duplicate_detection=detects) for m in batch]
    agree = (
        all(not m.session_id or m.partition_key in (None, m.session_id) for m in batch)
        and len(set(own)) <= 1
        and (not detects or (len({m.message_id for m in batch}) <= 1 and None not in own))
    )
    try:
        key = check_batch_keys(batch, requires_duplicate_detection=detects)
    except InvalidOperationError:
        assert not agree
    else:
        assert agree
        assert key == (own[0] if own else None)
