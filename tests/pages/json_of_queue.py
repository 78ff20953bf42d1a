"""What `sbclient admin show --json` prints of a queue, for docs/commands-admin.md."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Final

from sbclient.broker.descriptions import completed
from sbclient.broker.profile import STD_2021
from sbclient.cli.admin import shown
from sbclient.entities import QueueProperties, RuntimeProperties
from tests.pages.table import Part


def _text() -> str:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    runtime = RuntimeProperties(name="orders", created_at_utc=at, updated_at_utc=at)
    queue = shown(completed(QueueProperties("orders"), STD_2021)) | {"runtime": shown(runtime)}
    return f"```json\n{json.dumps(queue, indent=2)}\n```\n"


PART: Final = Part("commands-admin.md", "a queue as JSON", _text)
