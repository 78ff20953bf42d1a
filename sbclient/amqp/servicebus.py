"""The names that Service Bus adds to AMQP 1.0: annotations, nodes, link properties, operations and their fields.

Client and emulator take them from here. The error conditions belong to the classes of `sbclient.errors`.

Source: Service Bus in the AMQP 1.0 protocol guide, and the page of its request-response operations.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from sbclient.amqp.types import Timestamp
from sbclient.delivery import SettleMode
from sbclient.errors import OperationTimeoutError

PREFIX: Final = "com.microsoft:"

# -- annotations of a message ------------------------------------------------------------------------------------------

PARTITION_KEY: Final = "x-opt-partition-key"
SCHEDULED_ENQUEUE_TIME: Final = "x-opt-scheduled-enqueue-time"
ENQUEUED_TIME: Final = "x-opt-enqueued-time"
SEQUENCE_NUMBER: Final = "x-opt-sequence-number"
ENQUEUE_SEQUENCE_NUMBER: Final = "x-opt-enqueue-sequence-number"
LOCKED_UNTIL: Final = "x-opt-locked-until"
DEAD_LETTER_SOURCE: Final = "x-opt-deadletter-source"
MESSAGE_STATE: Final = "x-opt-message-state"
LOCK_TOKEN: Final = "x-opt-lock-token"
VIA_PARTITION_KEY: Final = "x-opt-via-partition-key"

BROKER_ANNOTATIONS: Final = frozenset(
    {
        ENQUEUED_TIME,
        SEQUENCE_NUMBER,
        ENQUEUE_SEQUENCE_NUMBER,
        LOCKED_UNTIL,
        DEAD_LETTER_SOURCE,
        MESSAGE_STATE,
        LOCK_TOKEN,
    }
)
"""The annotations that only a broker may set; those of a sender are dropped."""

ATTRIBUTES_BY_ANNOTATION: Final = {
    PARTITION_KEY: "partition_key",
    SCHEDULED_ENQUEUE_TIME: "scheduled_enqueue_time_utc",
    ENQUEUED_TIME: "enqueued_time_utc",
    SEQUENCE_NUMBER: "sequence_number",
    ENQUEUE_SEQUENCE_NUMBER: "enqueued_sequence_number",
    LOCKED_UNTIL: "locked_until_utc",
    DEAD_LETTER_SOURCE: "dead_letter_source",
    MESSAGE_STATE: "state",
}
"""The attribute of a received message for each annotation."""

# -- connections, links and nodes --------------------------------------------------------------------------------------

WEBSOCKET_PATH: Final = "/$servicebus/websocket"
WEBSOCKET_PROTOCOL: Final = "AMQPWSB10"

CBS: Final = "$cbs"
MANAGEMENT: Final = "$management"

SESSION_FILTER: Final = PREFIX + "session-filter"

IS_JMS_CLIENT: Final = PREFIX + "is-client-provider"
"""A property of the open frame of a Premium JMS client."""

LINK_TIMEOUT: Final = OperationTimeoutError.condition
LINK_ENTITY_TYPE: Final = PREFIX + "entity-type"
LINK_TRANSFER_DESTINATION: Final = PREFIX + "transfer-destination-address"
LINK_LOCKED_UNTIL: Final = PREFIX + "locked-until-utc"
LINK_MAX_BATCH_SIZE: Final = PREFIX + "max-message-batch-size"
"""Properties of attach frames."""

DEAD_LETTER: Final = PREFIX + "dead-letter"
"""The condition by which a receiver rejects a message into the dead-letter queue."""

ARGUMENT_ERROR: Final = PREFIX + "argument-error"
ARGUMENT_OUT_OF_RANGE: Final = PREFIX + "argument-out-of-range"
CONTAINER_CLOSE: Final = PREFIX + "container-close"
"""Conditions without an error class of their own."""

# -- requests and replies ----------------------------------------------------------------------------------------------

OPERATION: Final = "operation"
TYPE: Final = "type"
NAME: Final = "name"
EXPIRATION: Final = "expiration"
SERVER_TIMEOUT: Final = PREFIX + "server-timeout"
ASSOCIATED_LINK: Final = "associated-link-name"
"""Application properties of a request."""

STATUS_CODE: Final = "statusCode"
STATUS_DESCRIPTION: Final = "statusDescription"
ERROR_CONDITION: Final = "errorCondition"
"""Application properties of a reply of a management node."""

CBS_STATUS_CODE: Final = "status-code"
CBS_STATUS_DESCRIPTION: Final = "status-description"
CBS_ERROR_CONDITION: Final = "error-condition"
"""Application properties of a reply of `$cbs`."""

PUT_TOKEN: Final = "put-token"
"""The operation of `$cbs`."""

PEEK_MESSAGE: Final = PREFIX + "peek-message"
RECEIVE_BY_SEQUENCE_NUMBER: Final = PREFIX + "receive-by-sequence-number"
SCHEDULE_MESSAGE: Final = PREFIX + "schedule-message"
CANCEL_SCHEDULED_MESSAGE: Final = PREFIX + "cancel-scheduled-message"
RENEW_LOCK: Final = PREFIX + "renew-lock"
RENEW_SESSION_LOCK: Final = PREFIX + "renew-session-lock"
GET_SESSION_STATE: Final = PREFIX + "get-session-state"
SET_SESSION_STATE: Final = PREFIX + "set-session-state"
GET_MESSAGE_SESSIONS: Final = PREFIX + "get-message-sessions"
UPDATE_DISPOSITION: Final = PREFIX + "update-disposition"
BATCH_DELETE_MESSAGES: Final = PREFIX + "batch-delete-messages"
ADD_RULE: Final = PREFIX + "add-rule"
REMOVE_RULE: Final = PREFIX + "remove-rule"
ENUMERATE_RULES: Final = PREFIX + "enumerate-rules"
"""Operations of a management node."""

MESSAGE: Final = "message"
MESSAGES: Final = "messages"
MESSAGE_COUNT: Final = "message-count"
MESSAGE_ID: Final = "message-id"
FROM_SEQUENCE_NUMBER: Final = "from-sequence-number"
SEQUENCE_NUMBERS: Final = "sequence-numbers"
OMIT_MESSAGE_BODY: Final = "omit-message-body"
ENQUEUED_BEFORE: Final = "enqueued-time-utc"
RECEIVER_SETTLE_MODE: Final = "receiver-settle-mode"
TOKEN: Final = "lock-token"
TOKENS: Final = "lock-tokens"
EXPIRATIONS: Final = "expirations"
DISPOSITION_STATUS: Final = "disposition-status"
PROPERTIES_TO_MODIFY: Final = "properties-to-modify"
DEAD_LETTER_REASON: Final = "deadletter-reason"
DEAD_LETTER_DESCRIPTION: Final = "deadletter-description"
SESSION_ID: Final = "session-id"
SESSION_STATE: Final = "session-state"
SESSION_IDS: Final = "sessions-ids"  # the service's own spelling
LAST_UPDATED_TIME: Final = "last-updated-time"
ALL_SESSIONS: Final = Timestamp(253_402_300_800_000)
"""As `last-updated-time` it selects sessions with messages or a state: 10000-01-01, to which .NET rounds its largest
time. An earlier time selects those whose state was set after it. Source: the Java client."""
KEY_OF_PARTITION: Final = "partition-key"
SKIP: Final = "skip"
TOP: Final = "top"
RULE_NAME: Final = "rule-name"
RULE_DESCRIPTION: Final = "rule-description"
RULES: Final = "rules"
"""Fields of the bodies of requests and replies."""

SQL_FILTER: Final = "sql-filter"
TRUE_FILTER: Final = "true-filter"
FALSE_FILTER: Final = "false-filter"
CORRELATION_FILTER: Final = "correlation-filter"
SQL_RULE_ACTION: Final = "sql-rule-action"
EXPRESSION: Final = "expression"
PROPERTIES: Final = "properties"
"""Fields of the description of a rule."""

DISPOSITION_STATUSES: Final = {
    SettleMode.COMPLETE: "completed",
    SettleMode.ABANDON: "abandoned",
    SettleMode.DEFER: "defered",  # the service's own spelling
    SettleMode.DEAD_LETTER: "suspended",
}
"""The values of the disposition status."""

# -- times -------------------------------------------------------------------------------------------------------------

_TICKS_AT_1970: Final = 621_355_968_000_000_000
_LATEST_TICKS: Final = 3_155_378_975_999_999_999
_1970: Final = datetime(1970, 1, 1, tzinfo=UTC)


def ticks_of_timestamp(at: float) -> int:
    """Return a time in seconds since 1970 as .NET counts it: units of 100 ns since the year 1."""
    return int(at * 10_000_000) + _TICKS_AT_1970


def timestamp_of_ticks(ticks: int) -> datetime:
    """Return a time that .NET has counted, or the first or last one if it cannot be represented."""
    microseconds = (min(max(int(ticks), 0), _LATEST_TICKS) - _TICKS_AT_1970) // 10
    return _1970 + timedelta(microseconds=microseconds)
