"""Rows that are encoded from messages one by one: what the encoder of columns must make too."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Any, TypeAlias

import pyarrow as pa

from sbclient.amqp import encode_message
from sbclient.message import ServiceBusMessage
from sbclient_spark.options import Destination
from sbclient_spark.write.encoded_rows import SCHEMA, BadRow, EncodedRows
from sbclient_spark.write.encoder import RowEncoder
from sbclient_spark.write.message_ids import MessageIds
from sbclient_spark.write.schema import RowPlan
from tests.payloads import encode_section

EncodedRow: TypeAlias = tuple[Any, ...]


def encoded_row(position: int, message: ServiceBusMessage) -> EncodedRow:
    """The values of `SCHEMA`."""
    is_scheduled = message.scheduled_enqueue_time_utc is not None
    keys = message.message_id, message.session_id, message.partition_key
    return encode_section(encode_message(message).payload), *keys, is_scheduled, position


def encoded_rows(destination: Destination, rows: Iterable[EncodedRow]) -> EncodedRows:
    arrays = [pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), SCHEMA, strict=True)]
    return EncodedRows(destination, pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))


@dataclass
class Row:
    """A valid row, decoded."""

    position: int
    destination: Destination
    message: ServiceBusMessage
    section: bytes


def read_batch(batch: pa.RecordBatch, plan: RowPlan, first_position: int = 0) -> list[Row | BadRow]:
    encoded, bad = RowEncoder(plan, MessageIds(plan.ids, None, Random(1))).encode(batch, first_position)
    good = [
        Row(rows.position(place), rows.destination, message.decoded(), rows.columns.column("section")[place].as_py())
        for rows in encoded
        for place, message in enumerate(rows.encoded())
    ]
    return sorted([*good, *bad], key=lambda row: row.position)
