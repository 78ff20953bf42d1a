"""What the page shows of an entity."""

from __future__ import annotations

from typing import Any

import pytest

from sbclient.emulator.page.overview import IN_WORDS, detail_of, row_of
from sbclient.entities import SETTINGS, EntityKind, settings_of
from tests.broker.driver import Driver
from tests.descriptions import another_value

UNSEEN = {"authorization_rules", "max_message_size_in_kilobytes", "support_ordering"}
"""Keys, what the Premium tier alone can change, and what follows from the partitions."""


@pytest.mark.parametrize(
    ("kind", "setting"),
    [
        (kind, name)
        for kind in (EntityKind.QUEUE, EntityKind.TOPIC, EntityKind.SUBSCRIPTION)
        for name, setting in SETTINGS.items()
        if name in settings_of(kind) and name not in UNSEEN and not setting.is_answer
    ],
)
def test_each_setting_is_seen(kind: EntityKind, setting: str) -> None:
    def shown(**settings: Any) -> tuple[Any, dict[str, Any]]:
        driver = Driver()
        driver.queue("target")
        driver.topic("t")
        names = ("t", "e") if kind is EntityKind.SUBSCRIPTION else ("e",)
        getattr(driver, kind)(*names, **settings)
        entity = driver.namespace.directory.get("/Subscriptions/".join(names))
        assert entity is not None
        return entity.description, {**detail_of(entity, ()), **row_of(entity, ())}

    needed = {"requires_duplicate_detection": True} if setting.startswith("duplicate_detection") else {}
    described, before = shown(**needed)
    _, after = shown(**needed, **{setting: another_value(kind, setting, described[setting], "target")})
    assert before != after, f"the page does not show {setting}: see IN_WORDS in emulator/page/overview.py"
    if setting not in IN_WORDS:
        assert after["others"].keys() == {setting}
