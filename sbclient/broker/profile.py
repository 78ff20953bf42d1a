"""Profiles of the service by tier and year: fragments, sizes and quotas.

Source: the documents on partitioned entities of 2015, 2017 and 2021, and the service's quotas. A profile is a plain
value: `dataclasses.replace` makes one with other limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Final

from sbclient.entities import MessagingSku
from sbclient.errors import InvalidOperationError

KIB: Final = 2**10
MIB: Final = 2**20


class Partitioning(Enum):
    """Which entities are partitioned."""

    ASKED = "those created with the flag"
    ALWAYS = "all"
    NEVER = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The limits of a namespace.

    Attributes:
        fragment_count: of a partitioned entity.
        partitioning: which entities are partitioned.
        sizes_in_megabytes: that may be chosen for an entity, the first is the default; each fragment has that size.
        max_partitioned_entities, max_entities: queues and topics of the namespace; None = no limit.
        max_message_size_bytes: the default of one message.
        max_configurable_message_size_bytes: what an entity may choose instead; None = it may not.
        max_batch_size_bytes: of several messages in one transfer.
        max_subscriptions, max_sql_filters, max_correlation_filters: of one topic.
        max_hops: how often a message is forwarded.
        max_concurrent_receives: waiting receives of one entity, a topic's subscriptions together.
    """

    name: str
    sku: MessagingSku = MessagingSku.STANDARD
    messaging_units: int | None = None
    fragment_count: int = 16
    partitioning: Partitioning = Partitioning.ASKED
    sizes_in_megabytes: tuple[int, ...] = (1024, 2048, 3072, 4096, 5120)
    max_partitioned_entities: int | None = 100
    max_entities: int | None = 10_000
    max_message_size_bytes: int = 256 * KIB
    max_configurable_message_size_bytes: int | None = None
    max_batch_size_bytes: int = 256 * KIB
    max_subscriptions: int = 2_000
    max_sql_filters: int = 2_000
    max_correlation_filters: int = 100_000
    max_hops: int = 4
    max_concurrent_receives: int = 5_000


STD_2021: Final = Profile(name="std-2021")
BASIC_2021: Final = replace(STD_2021, name="basic-2021", sku=MessagingSku.BASIC)
PREM_2021: Final = Profile(
    name="prem-2021",
    sku=MessagingSku.PREMIUM,
    messaging_units=1,
    fragment_count=2,
    partitioning=Partitioning.NEVER,
    sizes_in_megabytes=(1024, 2048, 3072, 4096, 5120, 10240, 20480, 40960, 81920),
    max_partitioned_entities=None,
    max_entities=None,
    max_message_size_bytes=MIB,
    max_configurable_message_size_bytes=100 * MIB,
    max_batch_size_bytes=MIB,
)
PREM_2017: Final = replace(
    PREM_2021, name="prem-2017", partitioning=Partitioning.ALWAYS, max_configurable_message_size_bytes=None
)
"""Messages of more than 1 MiB came with the api-version 2021-05."""

PROFILES: Final[Mapping[str, Profile]] = MappingProxyType(
    {profile.name: profile for profile in (BASIC_2021, STD_2021, PREM_2017, PREM_2021)}
)
"""All profiles by name. The documents of 2015, 2017 and 2021 describe the same Standard tier."""


def profile_of(profile: Profile | str) -> Profile:
    """Return a profile, which may be given by its name.

    Raises:
        InvalidOperationError: there is no profile of that name.
    """
    if isinstance(profile, Profile):
        return profile
    if profile not in PROFILES:
        raise InvalidOperationError(f"profile {profile!r} does not exist: choose one of {', '.join(PROFILES)}")
    return PROFILES[profile]
