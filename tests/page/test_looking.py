"""What is seen on the page, and that it follows what happens."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from sbclient.broker.faults import Fault, FaultKind
from sbclient.emulator.faults import WireFault, WireFaultKind
from sbclient.entities import RuleProperties, SqlRuleAction, SqlRuleFilter
from sbclient.message import ServiceBusMessage
from tests.page.conftest import PATIENCE_MS
from tests.page.served import PRIMARY, SECONDARY, Served

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright drives the browser")
expect = sync_api.expect
expect.set_options(timeout=PATIENCE_MS)
Page = Any
CHEAP = RuleProperties("cheap", SqlRuleFilter("price < 10"), SqlRuleAction("SET class = 'cheap'"))


def link(page: Page, path: str) -> Any:
    """An entity in the list."""
    return page.locator(f"nav a.entity[title='{path}']")


def figure(page: Page, name: str) -> Any:
    """One of the numbers at the top of an entity."""
    return page.locator(f".at-a-glance .is-{name} dd")


def open_entity(page: Page, served: Served, path: str, tab: str = "messages") -> None:
    page.goto(f"{served.url}#/contoso/{path.replace('/', '%2F')}/{tab}")
    expect(page.get_by_role("heading", level=1)).to_have_text(path)


def test_the_page_shows_the_whole_state_when_it_opens(page: Page, served: Served) -> None:
    served.queue("orders")
    served.send("orders", *(ServiceBusMessage("x") for _ in range(1_234)))
    for url in (served.url, served.url_of("contoso"), served.url_of(SECONDARY)):
        page.goto(url)
        expect(page.locator("#connection")).to_have_text("live")
        expect(link(page, "orders").locator(".waiting")).to_have_text("1,234")
        expect(page.get_by_role("region", name="Namespace contoso-backup").last).to_contain_text("no entities")


def test_counts_and_entities_follow_what_happens(page: Page, served: Served) -> None:
    served.queue("orders")
    page.goto(served.url)
    expect(link(page, "orders").locator(".waiting")).to_have_text("0")
    served.send("orders", ServiceBusMessage("a"), ServiceBusMessage("b"))
    expect(link(page, "orders").locator(".waiting")).to_have_text("2")
    served.queue("late", namespace=SECONDARY)
    expect(link(page, "late")).to_be_visible()
    served.receive("orders")
    expect(link(page, "orders").locator(".waiting")).to_have_text("0")
    served.clear()
    expect(link(page, "orders")).to_have_count(0)


def test_an_empty_namespace_says_what_to_do(page: Page, served: Served) -> None:
    page.goto(served.url)
    expect(page.locator(".card").first).to_contain_text("sbclient admin create queue orders")


def test_an_entity_shows_its_numbers_fragments_and_throughput(page: Page, served: Served) -> None:
    served.queue("orders", enable_partitioning=True)
    served.send("orders", *(ServiceBusMessage("x", partition_key="k") for _ in range(3)))
    served.receive("orders", 1, deletes=False)
    open_entity(page, served, "orders")
    expect(figure(page, "active")).to_have_text("3")
    expect(figure(page, "locked")).to_have_text("1")
    expect(page.locator(".fragment")).to_have_count(16)
    (used,) = [each for each in page.locator(".fragment").all() if each.locator(".fragment-count").inner_text() == "3"]
    assert "3 active, 1 locked" in used.get_attribute("title")
    served.send("orders", *(ServiceBusMessage("x") for _ in range(30)))
    expect(page.locator(".throughput output.tone-in")).not_to_have_text("0.0")


def test_a_message_is_shown_with_its_properties_and_its_body(page: Page, served: Served) -> None:
    served.queue("orders")
    body = '{"order": 12345678901234567890, "lines": [1.10, {"a": null}], "empty": []}'
    served.send("orders", ServiceBusMessage(body, message_id="m-1", subject="new", application_properties={"n": 5}))
    open_entity(page, served, "orders")
    page.get_by_role("button", name="1", exact=True).click()
    window = page.get_by_role("dialog")
    expect(window.locator("pre.body")).to_have_text(
        '{\n  "order": 12345678901234567890,\n  "lines": [\n    1.10,\n    {\n      "a": null\n    }\n  ],\n'
        '  "empty": []\n}'
    )
    window.get_by_role("button", name="Raw").click()
    expect(window.locator("pre.body")).to_have_text(body)
    window.get_by_role("button", name="Hex").click()
    expect(window.locator("pre.body")).to_contain_text(
        '7b 22 6f 72 64 65 72 22 3a 20 31 32 33 34 35 36  {"order": 123456'
    )
    expect(window.locator(".facts")).to_contain_text("m-1")
    expect(window.locator(".properties")).to_contain_text("int")
    page.keyboard.press("Escape")
    expect(window).to_have_count(0)


def test_the_list_shows_only_columns_with_a_value_and_can_be_filtered(page: Page, served: Served) -> None:
    served.queue("orders")
    served.send("orders", ServiceBusMessage("plum"), ServiceBusMessage("pear", application_properties={"n": 5}))
    open_entity(page, served, "orders")
    rows, heads = page.locator("#panel-messages .messages tbody tr"), page.locator("#panel-messages thead th")
    expect(rows).to_have_count(2)
    visible = [head.inner_text() for head in heads.all() if head.is_visible()]
    assert visible == ["number", "id", "enqueued", "size", "body"]
    page.locator("#panel-messages").get_by_role("searchbox").fill("n=5")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("pear")
    served.send("orders", ServiceBusMessage("plum", subject="n=5", session_id="s"))
    expect(rows).to_have_count(2)
    for head in ("session", "subject"):
        expect(page.locator(f"#panel-messages .head-{head}")).to_be_visible()


def test_faults_of_entities_show_in_the_overview_and_the_crumbs_lead_there(page: Page, served: Served) -> None:
    for name in ("orders", "never-used"):
        served.queue(name)
        served.emulator.inject(Fault(FaultKind.DOWN, name))
    page.goto(served.url)
    card = page.get_by_role("region", name="Namespace contoso", exact=True)
    expect(card.locator(".about-namespace .state")).to_have_text("problems in 2 entities")
    expect(card.locator(".about-namespace .state")).to_have_attribute("data-kind", "warn")
    served.emulator.context(PRIMARY).publish("entity.elements_ignored", path="orders", elements=["LockDuration"])
    expect(page.locator(".activity")).to_contain_text("elements out of order, which Service Bus does not apply · Lock")
    open_entity(page, served, "orders", "about")
    expect(page.locator("#panel-about")).to_contain_text("ignored: out of orderLockDuration")
    expect(page.locator("#panel-about")).to_contain_text("created")
    open_entity(page, served, "never-used")
    expect(page.locator(".at-a-glance .throughput")).to_be_visible()
    expect(page.locator(".at-a-glance svg.chart")).to_be_hidden()
    page.locator(".crumbs").get_by_role("link", name="contoso").click()
    expect(card).to_be_in_viewport()


def test_a_binary_body_is_shown_in_hexadecimal(page: Page, served: Served) -> None:
    served.queue("orders")
    served.send("orders", ServiceBusMessage(bytes(range(20))))
    open_entity(page, served, "orders")
    rows = page.locator("#panel-messages .messages tbody tr")
    expect(rows).to_contain_text("binary")
    rows.click()
    expect(page.get_by_role("dialog").locator("pre.body")).to_contain_text("000010  10 11 12 13")


def test_the_list_of_messages_follows_pages_and_turns_around(page: Page, served: Served) -> None:
    served.queue("orders")
    served.send("orders", *(ServiceBusMessage(f"number {number}") for number in range(60)))
    open_entity(page, served, "orders")
    rows = page.locator("#panel-messages .messages tbody tr")
    expect(rows).to_have_count(50)
    page.get_by_role("button", name="Show more").click()
    expect(rows).to_have_count(60)
    page.locator("#panel-messages").get_by_label("Order").select_option("newest")
    expect(rows.first).to_contain_text("number 59")
    served.send("orders", ServiceBusMessage("the latest"))
    expect(rows.first).to_contain_text("the latest")


def test_one_fragment_can_be_chosen(page: Page, served: Served) -> None:
    served.queue("orders", enable_partitioning=True)
    served.send("orders", *(ServiceBusMessage(f"to {key}", partition_key=key) for key in "abcdefgh"))
    open_entity(page, served, "orders")
    rows = page.locator("#panel-messages .messages tbody tr")
    expect(rows).to_have_count(8)
    chosen = page.locator(".fragment").filter(has=page.locator(".fragment-count", has_text="1")).first
    index = chosen.locator(".fragment-index").inner_text()
    chosen.click()
    expect(rows).not_to_have_count(8)
    assert {row.locator(".cell-fragment").inner_text() for row in rows.all()} == {index}
    page.get_by_role("button", name=f"fragment {index}: show all again").click()
    expect(rows).to_have_count(8)


def test_sessions_show_their_holder_and_lead_to_their_messages(page: Page, served: Served) -> None:
    served.queue("jobs", requires_session=True)
    served.send("jobs", *(ServiceBusMessage(f"of {name}", session_id=name) for name in ("one", "one", "two")))
    open_entity(page, served, "jobs", "sessions")
    rows = page.locator(".sessions tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("free")
    rows.filter(has_text="two").get_by_role("button").click()
    expect(page.locator("#panel-messages .messages tbody tr")).to_have_count(1)
    expect(page.locator("#panel-messages .messages tbody")).to_contain_text("of two")


def test_a_topic_leads_to_its_subscriptions_and_those_show_their_rules(page: Page, served: Served) -> None:
    served.topic("prices", "eu")
    served.rule("prices", "eu", CHEAP)
    served.send("prices", ServiceBusMessage("x"))
    open_entity(page, served, "prices", "subscriptions")
    row = page.locator("#panel-subscriptions tbody tr")
    expect(row).to_contain_text("cheap: price < 10, then SET class = 'cheap'")
    expect(row).to_contain_text("$Default: every message")
    expect(row.locator("td").first).to_have_text("1")
    page.locator("#panel-subscriptions").get_by_role("link", name="eu").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("prices/Subscriptions/eu")
    expect(page.get_by_role("button", name="Send…")).to_have_count(0)
    page.get_by_role("tab", name="Rules").click()
    expect(page.locator(".rules tbody tr")).to_have_count(2)
    expect(page.locator(".rules")).to_contain_text("SET class = 'cheap'")


def test_deferred_messages_are_counted_apart_and_a_plain_queue_has_no_fragments(page: Page, served: Served) -> None:
    served.queue("orders")
    served.send("orders", *(ServiceBusMessage("x") for _ in range(3)))
    served.defer("orders")
    open_entity(page, served, "orders")
    expect(figure(page, "active")).to_have_text("2")
    expect(figure(page, "deferred")).to_have_text("1")
    expect(page.locator("#panel-messages .mark-deferred")).to_have_count(1)
    expect(page.get_by_text("fragment", exact=False).locator("visible=true")).to_have_count(0)
    page.get_by_role("tab", name="Faults").click()
    expect(page.get_by_text("fragment", exact=False).locator("visible=true")).to_have_count(0)


def test_a_pair_is_seen_by_its_backlog(page: Page, served: Served) -> None:
    backlog = "contoso/x-servicebus-transfer/0"
    served.queue("orders")
    served.queue(backlog, namespace=SECONDARY)
    page.goto(served.url)
    pair = page.locator(".pair")
    expect(pair).to_contain_text("contoso ⇄ contoso-backup")
    expect(pair.get_by_role("table")).to_be_hidden()  # it has no rows
    served.do(lambda: served.emulator.context("contoso").host.inject(Fault(FaultKind.DOWN, "orders")))
    expect(pair.locator(".flow")).to_contain_text("primary · problem in 1 entity")
    served.do(lambda: served.emulator.context("contoso").host.inject(Fault(FaultKind.DOWN)))
    diverted = [ServiceBusMessage("x", application_properties={"x-ms-path": "orders"}) for _ in range(3)]
    served.send(backlog, *diverted, namespace=SECONDARY)
    row = pair.locator(".destinations tbody tr")
    expect(row).to_contain_text("diverted now")
    expect(row.locator("td").nth(2)).to_have_text("3")
    served.send(backlog, *diverted * 20, namespace=SECONDARY)
    for place in (pair.locator(".flow .way-label").nth(1), row.locator("td").nth(4)):
        expect(place).to_have_text(re.compile(r"^[1-9]"))
    served.receive(backlog, 50, namespace=SECONDARY)
    expect(pair.locator(".flow .way-label").nth(2)).to_have_text(re.compile(r"^[1-9].*drained"))
    served.send(backlog, *diverted, namespace=SECONDARY)
    expect(pair.locator(".flow")).to_have_attribute("aria-label", re.compile(r"contoso, down: .*where 16 wait"))
    served.queue("orders", namespace=SECONDARY)
    page.wait_for_timeout(1_000)  # the page has seen the entity
    served.send("orders", ServiceBusMessage("x"), namespace=SECONDARY)
    expect(pair).to_contain_text(re.compile(r"orders: delivered to the secondary since \d\d:\d\d:\d\d\."))


def test_the_list_can_be_filtered_among_a_thousand(page: Page, served: Served) -> None:
    for number in range(1_000):
        served.queue(f"area/{number}")
    page.goto(served.url)
    expect(page.locator("nav a.entity")).to_have_count(1_000)
    page.get_by_label("Filter entities").fill("99")
    expect(page.locator("nav a.entity")).to_have_count(19)
    page.get_by_label("Filter entities").fill("nothing")
    expect(page.locator("nav")).to_contain_text("None of 1,000 match.")
    served.send("area/5", ServiceBusMessage("x"))
    page.get_by_label("Filter entities").fill("area/5")
    expect(link(page, "area/5").locator(".waiting")).to_have_text("1")


def test_an_entity_that_is_gone_says_so(page: Page, served: Served, watch: Any) -> None:
    watch.allows_refusals = True  # what the page asks may be on its way when the entity goes
    served.queue("orders")
    open_entity(page, served, "orders")
    served.clear()
    expect(page.get_by_text("orders does not exist in contoso")).to_be_visible()
    for word in ("Purge…", "Send…"):
        expect(page.get_by_role("button", name=word)).to_have_count(0)
    expect(page.locator(".view-head .state")).to_be_hidden()


def test_a_lost_connection_is_shown_and_restored(page: Page, served: Served, watch: Any) -> None:
    watch.allows_cuts = True
    served.queue("orders")
    page.goto(served.url_of("contoso"))
    expect(page.locator("#connection")).to_have_text("live")
    fault = WireFault(WireFaultKind.RESET)
    served.emulator.inject(fault)
    expect(page.get_by_role("alert").first).to_contain_text("tries again by itself")
    expect(page.get_by_role("link", name="Faults do not affect port")).to_have_attribute("href", served.url)
    served.emulator.heal(fault)
    expect(page.locator("#connection")).to_have_text("live")
    expect(page.locator(".banner")).to_have_count(0)
    expect(link(page, "orders")).to_be_visible()


def test_no_view_is_wider_than_a_phone(new_page: Callable[..., Page], served: Served) -> None:
    page = new_page(viewport={"width": 375, "height": 760})
    fill(served)
    for path in ("orders", "prices", "prices/Subscriptions/eu", "jobs"):
        open_entity(page, served, path)
        expect(page.locator(".view-head .state")).to_be_visible()
        for tab in page.get_by_role("tab").all():
            if tab.is_visible():
                tab.click()
                assert page.evaluate("document.documentElement.scrollWidth") <= 375, (path, tab.inner_text())


def test_a_phone_shows_the_overview_and_the_list_on_request(new_page: Callable[..., Page], served: Served) -> None:
    page = new_page(viewport={"width": 375, "height": 760})
    fill(served)
    page.goto(served.url)
    expect(page.locator(".card").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    expect(link(page, "orders")).to_be_hidden()
    page.get_by_role("button", name="Namespaces and entities").click()
    link(page, "orders").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("orders")
    expect(link(page, "orders")).to_be_hidden()
    page.locator("#panel-messages .messages tbody tr").first.click()
    expect(page.get_by_role("dialog")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 375


def fill(served: Served) -> None:
    """Something of everything."""
    served.queue("orders", enable_partitioning=True)
    served.queue("jobs", requires_session=True)
    served.topic("prices", "eu")
    served.send("orders", *(ServiceBusMessage("a long text " * 40, subject="x" * 60) for _ in range(20)))
    served.send("jobs", ServiceBusMessage("x", session_id="s" * 100))
    served.send("prices", ServiceBusMessage("x"))
    served.dead_letter("orders", ServiceBusMessage("x"), reason="r" * 80)
    served.emulator.inject(Fault(FaultKind.DOWN, "orders", fragments=[1, 2]))
