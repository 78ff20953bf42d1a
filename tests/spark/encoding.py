"""Rows that are encoded from messages one by one: what the encoder of columns must make too."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import pyarrow as pa

from sbclient.amqp import encode_message, encode_section
from sbclient.message import ServiceBusMessage
from sbclient_spark.options import Destination
from sbclient_spark.write.encoded_rows import SCHEMA, EncodedRows

EncodedRow: TypeAlias = tuple[Any, ...]


def encoded_row(position: int, message: ServiceBusMessage) -> EncodedRow:
    """The values of `SCHEMA`."""
    is_scheduled = message.scheduled_enqueue_time_utc is not None
    keys = message.message_id, message.session_id, message.partition_key
    return encode_section(encode_message(message).payload), *keys, is_scheduled, position


def encoded_rows(destination: Destination, rows: Iterable[EncodedRow]) -> EncodedRows:
    arrays = [pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), SCHEMA, strict=True)]
    return EncodedRows(destination, pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))
