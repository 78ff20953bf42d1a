"""The work and the memory of the decoder are linear in the bytes, and no map is searched for long."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from sbclient.amqp import Sections
from sbclient.amqp.decode import MAX_OTHER_KEYS, decode_value
from sbclient.amqp.encode import encode_value
from sbclient.amqp.encoded import EncodedMessage
from sbclient.amqp.errors import DECODE_ERROR, WireError
from tests.hostile.decoding import INPUTS, MAX_BYTES_PER_BYTE, memory_bytes
from tests.hostile.keys import KEYS
from tests.hostile.raw_client import encoded_map

NULL = b"\x40"


@pytest.mark.promise("client.decoder")
@pytest.mark.parametrize("name", INPUTS)
def test_memory_is_linear_in_the_bytes(name: str) -> None:
    raw = INPUTS[name](2**14)

    assert memory_bytes(raw, typed=False) <= MAX_BYTES_PER_BYTE * len(raw)
    assert memory_bytes(raw, typed=True) <= MAX_BYTES_PER_BYTE * len(raw)


@pytest.mark.promise("client.map-keys")
@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
def test_protocol_maps_reject_keys_with_chosen_hashes(keys: Callable[[int], Iterator[bytes]]) -> None:
    raw = encoded_map((key, NULL) for key in keys(2))

    with pytest.raises(WireError) as caught:
        decode_value(raw)

    assert caught.value.error.condition == DECODE_ERROR


@pytest.mark.promise("client.map-keys")
@pytest.mark.parametrize("kind", ["uuids", "decimals"])
def test_body_maps_reject_many_keys_of_one_hash(kind: str) -> None:
    assert len(decode_value(encoded_map((key, NULL) for key in KEYS[kind](9)), typed=True)) == 9
    with pytest.raises(WireError, match="equal hashes"):
        decode_value(encoded_map((key, NULL) for key in KEYS[kind](10)), typed=True)


@pytest.mark.promise("client.map-keys")
def test_body_maps_accept_1024_numbers_as_keys() -> None:
    assert MAX_OTHER_KEYS == 1_024
    assert decode_value(encode_value({n: n for n in range(1_024)}), typed=True) == {n: n for n in range(1_024)}
    with pytest.raises(WireError, match="1024 keys"):
        decode_value(encode_value({n: n for n in range(1_025)}), typed=True)


def test_body_maps_accept_any_number_of_strings_as_keys() -> None:
    names = {f"name {number}": number for number in range(20_000)}

    assert decode_value(encode_value(names), typed=True) == names
    assert decode_value(encode_value(names)) == names


@pytest.mark.promise("client.map-keys")
def test_protocol_maps_accept_integers_of_one_byte_and_binary_as_keys() -> None:
    assert decode_value(encoded_map([(b"\x53\x07", NULL), (b"\xa0\x01t", NULL), (b"\xa3\x01s", NULL)])) == {
        7: None,
        b"t": None,
        "s": None,
    }


def test_message_with_flooded_annotations_is_rejected() -> None:
    annotations = b"\x00\x53\x72" + encoded_map((key, NULL) for key in KEYS["uuids"](100))

    with pytest.raises(WireError, match="0x98"):
        EncodedMessage.of(annotations + b"\x00\x53\x75\xa0\x00")


def test_message_with_flooded_properties_or_body_is_stored_undecoded() -> None:
    flooded = encoded_map((key, NULL) for key in KEYS["uuids"](100))
    message = EncodedMessage.of(b"\x00\x53\x77" + flooded)

    assert Sections(b"\x00\x53\x77" + flooded).raw_value(0x77) == flooded
    with pytest.raises(WireError, match="equal hashes"):
        _ = message.body
