"""What stays over time: addresses that lead back to a place, histories that survive a reload, and sharp charts."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from sbclient.broker.faults import Fault, FaultKind
from sbclient.message import ServiceBusMessage
from tests.page.conftest import Watch
from tests.page.served import SECONDARY, Served
from tests.page.test_looking import expect, open_entity

Page = Any
BACKLOG = "contoso/x-servicebus-transfer/0"


def test_an_address_leads_to_a_tab_and_to_a_message(page: Page, served: Served, watch: Watch) -> None:
    watch.allows_refusals = True
    served.queue("orders", enable_partitioning=True)
    served.dead_letter("orders", ServiceBusMessage("plum"))
    open_entity(page, served, "orders")
    dead, window = page.get_by_role("tab", name="Dead letters"), page.get_by_role("dialog")
    dead.click()
    expect(page).to_have_url(f"{served.url}#/contoso/orders/dead")
    row = page.locator("#panel-dead .messages tbody tr")
    number = row.locator(".cell-number").inner_text()
    assert int(number) >= 2**48 or number == "1"
    row.click()
    expect(window.get_by_role("heading", level=2)).to_have_text(f"Message {number}")
    expect(window.locator(".facts")).to_contain_text(number)
    address = f"{served.url}#/contoso/orders/dead/{number}"
    expect(page).to_have_url(address)
    page.reload()
    expect(window).to_contain_text("plum")
    page.go_back()
    expect(window).to_have_count(0)
    expect(dead).to_have_attribute("aria-selected", "true")
    page.go_back()
    expect(page.get_by_role("tab", name="Messages")).to_have_attribute("aria-selected", "true")
    page.goto("about:blank")
    page.goto(address)
    expect(window).to_contain_text("plum")
    page.keyboard.press("Escape")
    expect(page).to_have_url(f"{served.url}#/contoso/orders/dead")

    search = page.locator("#panel-dead").get_by_label("Filter by text")
    search.fill(f" {number} ")
    search.press("Enter")
    expect(row).to_have_count(1)
    search.fill("4711")
    search.press("Enter")
    expect(page.locator("#alerts")).to_contain_text("4711")
    expect(page).to_have_url(f"{served.url}#/contoso/orders/dead")
    search.fill("apricot")
    expect(page.locator("#panel-dead")).to_contain_text("No messages match the filter.")
    search.fill("PLUM")
    expect(row).to_have_count(1)


def test_times_ribbons_and_charts_survive_a_reload(page: Page, served: Served) -> None:
    served.queue("orders")
    served.queue(BACKLOG, namespace=SECONDARY)
    page.goto(served.url)
    expect(page.locator("#connection")).to_have_text("live")
    diverted = ServiceBusMessage("x", application_properties={"x-ms-path": "orders"})
    served.send(BACKLOG, diverted, namespace=SECONDARY)
    served.send("orders", *(ServiceBusMessage("x") for _ in range(50)))
    served.emulator.inject(Fault(FaultKind.DOWN))
    ribbon = page.locator(".pair .ribbon")
    since = page.locator(".destinations tbody tr td time").first
    chart = page.get_by_role("img", name="Throughput of contoso:")
    seen = re.compile("contoso is down, .*orders is diverted now")
    expect(ribbon).to_have_attribute("aria-label", seen)
    expect(ribbon.locator(".span-bad")).to_have_count(2)
    expect(chart).to_have_attribute("aria-label", re.compile("at most [1-9]"))
    before = since.get_attribute("data-at"), ribbon.locator(".span-good").count()
    page.reload()
    expect(ribbon).to_have_attribute("aria-label", seen)
    expect(chart).to_have_attribute("aria-label", re.compile("at most [1-9]"))
    assert (since.get_attribute("data-at"), ribbon.locator(".span-good").count()) == before
    open_entity(page, served, "orders")
    expect(page.get_by_role("img", name="Throughput of orders")).to_have_attribute(
        "aria-label", re.compile("at most [1-9]")
    )


@pytest.mark.parametrize("dots", [1, 2])
def test_edges_of_charts_are_at_edges_of_pixels(new_page: Callable[..., Page], served: Served, dots: int) -> None:
    page = new_page(device_scale_factor=dots, viewport={"width": 1279, "height": 900})
    served.queue("orders")
    page.goto(served.url)
    expect(page.locator("#connection")).to_have_text("live")
    served.send("orders", *(ServiceBusMessage("x") for _ in range(37)))
    chart = page.get_by_role("img", name="Throughput of contoso:")
    expect(chart).to_have_attribute("aria-label", re.compile("at most [1-9]"))
    drawn, rendering = page.evaluate(
        """() => {
            const path = document.querySelector(".chart .area-in");
            return [path.getAttribute("d"), getComputedStyle(path).shapeRendering];
        }"""
    )
    assert [each for each in re.findall(r"[0-9.]+", drawn) if (float(each) * dots) % 1] == []
    assert rendering.casefold() == "crispedges"
    expect(chart.locator(".no-data")).to_have_count(1)  # the time before a page was open
    page.close()
