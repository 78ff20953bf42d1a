"""The page by keyboard alone, in the dark and in the light, and for those who hear it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sbclient.broker.faults import Fault, FaultKind
from sbclient.message import ServiceBusMessage
from tests.page.served import SECONDARY, Served
from tests.page.test_looking import expect, fill, link, open_entity

Page = Any

FOCUS = """() => {
    const element = document.activeElement;
    const style = getComputedStyle(element);
    return {
        tag: element.tagName.toLowerCase(),
        name: element.getAttribute("aria-label") ?? element.getAttribute("aria-labelledby")
            ?? element.labels?.[0]?.textContent ?? element.textContent.trim(),
        isShown: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
        isVisible: element.checkVisibility() && element.getBoundingClientRect().width > 0,
    };
}"""

LANDMARKS = """() => {
    const found = [];
    const nameOf = (each) => each.getAttribute("aria-label")
        ?? document.getElementById(each.getAttribute("aria-labelledby"))?.textContent ?? "";
    const regions = [...document.querySelectorAll("section, nav")].filter((each) => each.checkVisibility());
    const names = regions.map(nameOf);
    if (names.includes("")) found.push("a region has no name");
    if (new Set(names).size < names.length) found.push(`two regions have the same name: ${names.join()}`);
    const ids = [...document.querySelectorAll("[id]")].map((each) => each.id);
    if (new Set(ids).size < ids.length) found.push("two elements have the same id");
    for (const each of document.body.children) {
        const isLandmark = each.matches("header, .skip, dialog, [role=status], [role=alert], svg");
        const holdsLandmarks = [...each.children].every((inner) => inner.matches("nav, main, [role=alert]"));
        if (!isLandmark && !holdsLandmarks) found.push(`outside all landmarks: ${each.outerHTML.slice(0, 80)}`);
    }
    return found;
}"""
CONTRASTS = Path(__file__).with_name("contrasts.js").read_text(encoding="utf-8")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_has_enough_contrast(new_page: Callable[..., Page], served: Served, scheme: str) -> None:
    page = new_page(color_scheme=scheme, viewport={"width": 1280, "height": 2_400})
    fill(served)
    backlog = "contoso/x-servicebus-transfer/0"
    served.queue(backlog, namespace=SECONDARY)
    diverted = ServiceBusMessage("x", application_properties={"x-ms-path": "orders"})
    served.send(backlog, diverted, namespace=SECONDARY)
    for index, kind in enumerate((FaultKind.HANG, FaultKind.BUSY, FaultKind.SLOW), start=4):
        served.emulator.inject(Fault(kind, "orders", fragments=[index]))
    page.goto(served.url)
    page.get_by_text("Faults of the namespace").first.click()
    expect(page.locator(".pair .destinations tbody tr")).to_have_count(1)
    assert page.evaluate(CONTRASTS) == []
    open_entity(page, served, "orders")
    expect(page.locator(".fragment-state").nth(5)).to_have_text("busy")
    for tab in page.get_by_role("tab").all():
        if tab.is_visible():
            tab.click()
            assert page.evaluate(CONTRASTS) == []
    page.get_by_role("tab", name="Messages").click()
    page.locator("#panel-messages .messages tbody tr").first.click()
    expect(page.get_by_role("dialog")).to_be_visible()
    assert page.evaluate(CONTRASTS) == []
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Purge…").first.click()
    assert page.evaluate(CONTRASTS) == []
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(int(part) for part in ground.strip("rgb()").split(",")) > 384) is (scheme == "light")


def test_tab_goes_through_everything_and_is_always_seen(page: Page, served: Served) -> None:
    served.queue("orders", enable_partitioning=True)
    served.send("orders", ServiceBusMessage("x"))
    open_entity(page, served, "orders")
    expect(page.locator("#panel-messages .messages tbody tr")).to_have_count(1)
    page.evaluate("document.activeElement.blur()")
    stops = []
    for _ in range(60):
        page.keyboard.press("Tab")
        stop = page.evaluate(FOCUS)
        if stop["tag"] == "body":
            break
        stops.append(stop)
    assert [stop for stop in stops if not (stop["isShown"] and stop["isVisible"] and stop["name"])] == []
    names = [stop["name"] for stop in stops]
    expected = ["Skip to the content", "Filter entities", "orders, queue", "Purge…", "Send…", "Fragment 0", "Messages"]
    places = [next(at for at, name in enumerate(names) if name.startswith(each)) for each in expected]
    assert places == sorted(places)
    assert "Choose message" in " ".join(names)


def test_a_message_is_sent_resubmitted_and_purged_by_keys_alone(page: Page, served: Served) -> None:
    served.queue("orders", enable_partitioning=True)
    served.queue("other")
    served.dead_letter("orders", ServiceBusMessage("dead"))
    page.goto(served.url)
    expect(link(page, "orders")).to_be_visible()
    page.keyboard.press("/")
    expect(page.get_by_label("Filter entities")).to_be_focused()
    page.keyboard.type("ord")
    expect(link(page, "other")).to_have_count(0)
    page.keyboard.press("Tab")
    expect(link(page, "orders")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("orders")

    page.keyboard.press("s")
    expect(page.get_by_label("Body", exact=True)).to_be_focused()
    page.keyboard.press("Control+a")
    page.keyboard.type("by keys: s m d ?")  # letters that are shortcuts elsewhere
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("s")
    page.get_by_label("Body", exact=True).press("Control+a")
    page.keyboard.type("by keys")
    _tab_to(page, "Send")
    page.keyboard.press("Enter")
    expect(page.locator("#notices")).to_contain_text("Sent 1 message")
    expect(page.locator("#panel-messages .messages tbody tr")).to_have_count(1)

    page.keyboard.press("d")
    expect(page.get_by_role("tab", name="Dead letters")).to_have_attribute("aria-selected", "true")
    expect(page.locator("#panel-dead .messages tbody tr")).to_have_count(1)
    page.get_by_role("tab", name="Dead letters").focus()
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_role("tab", name="Messages")).to_be_focused()
    page.keyboard.press("ArrowRight")
    _tab_to(page, "Resubmit all…")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Cancel")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#notices")).to_contain_text("Resubmitted 1 message")

    page.keyboard.press("f")
    page.locator(".fragment").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(page.locator(".fragment").nth(1)).to_have_attribute("aria-pressed", "true")
    page.get_by_role("tab", name="Faults").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    expect(page.locator(".fragment-state").nth(1)).to_have_text("down")

    page.keyboard.press("j")
    page.keyboard.press("o")
    expect(page.locator(".card").first).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("send a message to it")
    page.get_by_label("Single letters are shortcuts").uncheck()
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_a_window_keeps_the_focus_and_gives_it_back(page: Page, served: Served) -> None:
    served.queue("orders")
    open_entity(page, served, "orders")
    expect(page.locator("#connection")).to_have_text("live")
    page.get_by_role("button", name="Send…").focus()
    page.keyboard.press("Enter")
    for _ in range(20):
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement === document.body || !!document.activeElement.closest('dialog')")
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Send…")).to_be_focused()


def test_those_who_hear_it_find_landmarks_names_and_news(page: Page, served: Served) -> None:
    served.queue("orders", enable_partitioning=True)
    served.emulator.inject(Fault(FaultKind.DOWN, "orders", fragments=[2]))
    open_entity(page, served, "orders")
    for role in ("banner", "navigation", "main"):
        expect(page.get_by_role(role)).to_have_count(1)
    expect(page.get_by_role("button", name="Fragment 2: down; 0 active")).to_be_visible()
    expect(page.get_by_role("img", name="Throughput of orders")).to_be_visible()
    expect(link(page, "orders")).to_have_attribute("aria-current", "page")
    assert page.title() == "orders – sbclient emulator"
    assert page.locator("[role=status][aria-live=polite]").count() >= 2
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, a, input, select, textarea")]
            .filter((each) => each.checkVisibility())
            .filter((each) => !(each.getAttribute("aria-label") || each.getAttribute("aria-labelledby")
                || each.labels?.length || each.textContent.trim()))
            .map((each) => each.outerHTML.slice(0, 80))"""
    )
    assert nameless == []
    for address in ("#/contoso/orders", "#/"):
        page.goto(served.url + address)
        expect(page.locator("main section").first).to_be_visible()
        assert page.evaluate(LANDMARKS) == []


def test_less_motion_is_no_motion(new_page: Callable[..., Page], served: Served) -> None:
    page = new_page(reduced_motion="reduce")
    served.queue("contoso/x-servicebus-transfer/0", namespace=SECONDARY)
    page.goto(served.url)
    expect(page.locator(".flow .way").first).to_be_attached()
    assert page.evaluate("document.getAnimations().length") == 0


def _tab_to(page: Page, name: str) -> None:
    """Press Tab until a button of that name has the focus."""
    for _ in range(80):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent.trim()") == name:
            return
    raise AssertionError(f"Tab never came to {name!r}")
