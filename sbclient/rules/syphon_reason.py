"""Why a syphon dead-letters a message in its backlog queue."""

from __future__ import annotations

from enum import StrEnum


class SyphonReason(StrEnum):
    """The reasons, each with its meaning for the documents. Some are those of the service for the same cause."""

    meaning: str

    def __new__(cls, text: str, meaning: str) -> SyphonReason:
        """Make a member that equals its text."""
        member = str.__new__(cls, text)
        member._value_ = text
        member.meaning = meaning
        return member

    DESTINATION_MISSING = "DestinationMissing", "the message has no destination, or one that is no string"
    DESTINATION_ILLEGAL = "DestinationIllegal", "its destination is not a valid entity path, or is a backlog queue"
    DESTINATION_NOT_ALLOWED = "DestinationNotAllowed", "its destination matches none of `syphon_destinations`"
    PROPERTY_MALFORMED = "PropertyMalformed", "a property that must be restored cannot be read"
    TTL_EXPIRED = "TTLExpiredException", "its time to live ended in the backlog: less than one second is left"
    TOO_LARGE = "MessageSizeExceeded", "it is larger than the destination allows"
    REFUSED = (
        "DestinationRefused",
        "the destination rejects it permanently, for example because it has no session id",
    )
    NOT_FOUND = "DestinationNotFound", "the destination has been missing for `missing_entity_grace`"
