import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbclient.errors import InvalidOperationError
from sbclient.message import ServiceBusMessage
from sbclient.rules.partition_key import fragment_of, partition_key_of
from sbclient.rules.transaction_key import transaction_key_of
from tests.rules.test_partition_key import keys, message


def key_of(
    *messages: ServiceBusMessage, pinned: str | None = None, session: bool = False, duplicates: bool = False
) -> str:
    return transaction_key_of(
        messages, pinned=pinned, requires_session=session, requires_duplicate_detection=duplicates
    )


def test_each_kind_of_key_pins_the_transaction() -> None:
    assert key_of(message(session_id="a")) == "a"
    assert key_of(message(partition_key="b")) == "b"
    assert key_of(message(message_id="c"), duplicates=True) == "c"


@pytest.mark.deviation("broker.transaction-message-ids")
def test_a_message_id_is_no_key_without_duplicate_detection() -> None:
    with pytest.raises(InvalidOperationError):
        key_of(message(message_id="c"))


def test_later_messages_carry_the_same_key() -> None:
    assert key_of(message(partition_key="a"), message(session_id="a"), pinned="a") == "a"


def test_a_message_without_a_key_is_refused() -> None:
    for pinned in (None, "a"):
        with pytest.raises(InvalidOperationError):
            key_of(message(), pinned=pinned)


def test_another_key_is_refused_and_both_are_named() -> None:
    with pytest.raises(InvalidOperationError) as caught:
        key_of(message(partition_key="b"), pinned="a")
    assert "'a'" in str(caught.value)
    assert "'b'" in str(caught.value)
    with pytest.raises(InvalidOperationError):
        key_of(message(partition_key="a"), message(partition_key="b"))


def test_keys_are_compared_and_not_fragments() -> None:
    twin = next(f"k{i}" for i in range(1000) if fragment_of(f"k{i}", 16) == fragment_of("a", 16))
    with pytest.raises(InvalidOperationError):
        key_of(message(partition_key=twin), pinned="a")


def test_a_session_entity_needs_the_session_id() -> None:
    assert key_of(message(session_id="a"), session=True) == "a"
    with pytest.raises(InvalidOperationError):
        key_of(message(partition_key="a"), session=True)


def test_a_partition_key_beside_the_session_id_must_equal_it() -> None:
    assert key_of(message("a", "a"), session=True) == "a"
    with pytest.raises(InvalidOperationError):
        key_of(message("a", "b"), session=True)


def test_two_sessions_in_one_transaction_are_refused() -> None:
    with pytest.raises(InvalidOperationError):
        key_of(message(session_id="b"), pinned="a", session=True)


def test_sending_nothing_pins_nothing() -> None:
    assert key_of(pinned="a") == "a"
    with pytest.raises(InvalidOperationError):
        key_of()


def test_an_empty_key_is_a_key() -> None:
    assert key_of(message(partition_key="")) == ""
    with pytest.raises(InvalidOperationError):
        key_of(message(partition_key="a"), pinned="")


@given(st.lists(st.builds(message, keys, keys, keys), min_size=1, max_size=3), keys, st.booleans(), st.booleans())
def test_messages_are_taken_exactly_if_all_agree(
    batch: list[ServiceBusMessage], pinned: str | None, session: bool, duplicates: bool
) -> None:
    own = [partition_key_of(m, requires_duplicate_detection=duplicates) for m in batch]
    agree = (
        all(not m.session_id or m.partition_key in (None, m.session_id) for m in batch)
        and len({*own, own[0] if pinned is None else pinned}) == 1
        and own[0] is not None
        and not (session and any(m.session_id is None for m in batch))
    )
    try:
        assert key_of(*batch, pinned=pinned, session=session, duplicates=duplicates) == own[0]
    except InvalidOperationError:
        assert not agree
    else:
        assert agree
