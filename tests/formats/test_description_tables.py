"""Each setting of an entity has one element, and each element something to show."""

from __future__ import annotations

from typing import Final

import pytest

from sbclient.entities import EntityKind, RuntimeProperties, element_name, settings_of
from sbclient.formats.description_tables import KINDS, TABLES

NO_SETTINGS: Final = {"CountDetails", "EntityAvailabilityStatus", "DefaultRuleDescription", "Name", "CreatedAt"}
LATER: Final = {
    "MaxMessageSizeInKilobytes": "2021-05",
    "IsClientAffine": "2021-05",
    "SqlFilterCount": "2024-05",
    "CorrelationFilterCount": "2024-05",
}
"""The elements of which clients of earlier versions of the API know nothing."""

ONLY_ANSWERS: Final = {"CountDetails", "SubscriptionCount", *(name for name in LATER if name.endswith("FilterCount"))}


@pytest.mark.parametrize("kind", EntityKind)
def test_the_elements_of_a_kind_are_its_settings_and_what_the_service_knows(kind: EntityKind) -> None:
    table, runtime = TABLES[kind], set(RuntimeProperties.__dataclass_fields__)
    settings = {element_name(name) for name in settings_of(kind)} - {"AvailabilityStatus", "CreatedAtUtc"}
    assert settings <= table.keys()
    for name, row in table.items():
        if row.source.startswith("@"):
            assert row.source[1:] in runtime
            assert row.source[1:].removesuffix("_utc") in {
                element_as_attribute(name),
                f"total_{element_as_attribute(name)}",
            }
        elif row.source.startswith("="):
            assert row.source[1:] in ("true", "false")
        else:
            assert name in settings | NO_SETTINGS | {"SupportOrdering"}
        assert row.since == LATER.get(name, "")
        accessed = name == "AccessedAt" and kind is not EntityKind.SUBSCRIPTION
        expected = "get" if name in ONLY_ANSWERS or accessed else "none" if name == "DefaultRuleDescription" else ""
        assert (row.name, row.answers) == (name, expected)
    assert KINDS[f"{kind.capitalize()}Description"] is kind


def element_as_attribute(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")
