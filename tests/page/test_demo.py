"""`sbclient demo --page`: the failover is watched from start to end, as the client itself knows it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.watched_demo import Demo
from tests.limit import HANG_S
from tests.page.test_looking import expect

Page = Any


@pytest.fixture
def demo() -> Iterator[Demo]:
    started = Demo("--messages", "600", "--speed", "60")
    yield started
    started.kill()


def test_the_failover_is_watched_from_start_to_end(page: Page, demo: Demo) -> None:
    page.goto(demo.url)
    story, pair = page.locator("#story"), page.locator(".pair")
    state = pair.locator(".destinations tbody tr").filter(has_text="payments").locator(".state")
    expect(state).to_have_text("healthy")
    expect(state).to_have_text("failed over", timeout=HANG_S * 1000)
    undiverted = pair.locator(".destinations tbody tr").filter(has_text="ledger").locator(".state")
    expect(undiverted).to_have_text("down")
    expect(pair.locator(".way-diverted.moving").first).to_be_attached()
    expect(pair.locator(".ping").filter(has_text="refused").first).to_be_visible()
    expect(state).to_have_text("healthy", timeout=HANG_S * 1000)
    expect(pair.locator(".way-home.moving").first).to_be_attached(timeout=HANG_S * 1000)
    expect(story.locator(".state")).to_have_text("over", timeout=HANG_S * 1000)
    lasted = pair.locator(".ribbon title").filter(has_text="payments")
    expect(lasted.filter(has_text="suspect for 1 min")).to_have_count(1)
    expect(lasted.filter(has_text="failed over for 3 min")).to_have_count(1)
    expect(undiverted).to_have_text("healthy")
    since = pair.locator(".destinations tbody tr").filter(has_text="ledger").locator("time").first
    expect(since).to_have_text(re.compile("^2 min"))
    expect(pair.locator(".ribbon title").filter(has_text="ledger: down for 3 min 30 s")).to_have_count(1)
    expect(pair.locator(".ribbon title").filter(has_text="contoso: down for 3 min 30 s")).to_have_count(1)
    expect(story).to_contain_text("lost0")
    expect(story).to_contain_text("delivered600")
    expect(page.locator(".activity")).to_contain_text("payments fails over: sends go to the backlog")
    recovered = page.locator(".activity li").filter(has_text="payments has recovered")
    expect(recovered).not_to_contain_text("Error")

    ages = page.locator("[data-at]")
    shown = ages.all_inner_texts()
    assert shown
    page.wait_for_timeout(2_500)  # more than two minutes of the story, if it went on
    assert ages.all_inner_texts() == shown

    page.reload()  # who comes late sees how it began
    chart = page.locator(".throughput svg").first
    expect(chart).to_have_attribute("aria-label", re.compile(r"at most [1-9]"))
    expect(page.locator(".ribbon .span-bad").first).to_be_attached()
    page.close()
    status, said = demo.interrupt()
    assert status == 0
    assert "lost 0" in said
    assert "Traceback" not in said
