"""An error without doubt means that neither namespace has the message, whatever its earlier attempts and parts met."""

from __future__ import annotations

import pytest

from tests.client.test_doubt import PARTS, scripts, send_under


@pytest.mark.parametrize("form", ["one", "list"])
@pytest.mark.parametrize("how", ["at once", "failed over", "while suspect", "while it waits", "in order"])
async def test_a_diversion(how: str, form: str) -> None:
    for script in scripts(3 + len(form) * 2):
        await send_under(script, how, form)


async def test_a_diversion_in_parts() -> None:
    for part, _ in PARTS:
        await send_under((("full",), part), "in order", "sessions")  # the primary leaves no doubt
