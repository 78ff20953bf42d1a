"""The page is safe: hostile input stays text, only the emulator gets requests, and no secret is shown."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from sbclient.entities import RuleProperties, SqlRuleFilter
from sbclient.message import ServiceBusMessage
from sbclient.rules.entity_path import subscription_path
from tests.page.conftest import Watch
from tests.page.served import SECONDARY, Served, serving_page
from tests.page.test_looking import expect, link, open_entity

Page = Any

HOSTILE = "<img src=x onerror=\"window.hacked='yes'\"><script>window.hacked='yes'</script>&amp;"
KEY = "a key of its own"


def is_hacked(page: Page) -> bool:
    return bool(page.evaluate("window.hacked !== undefined"))


@pytest.mark.promise("emulator.page")
def test_hostile_messages_stay_text(page: Page, served: Served) -> None:
    served.queue("orders", requires_session=True)
    served.queue("graves")
    bad = ServiceBusMessage(
        json.dumps({HOSTILE: HOSTILE}),
        subject=HOSTILE,
        message_id=HOSTILE,
        session_id=HOSTILE,
        content_type=HOSTILE,
        to="javascript:window.hacked=1",
        application_properties={HOSTILE: HOSTILE, "__proto__": "x", "constructor": "y"},
    )
    served.send("orders", bad)
    served.dead_letter("graves", ServiceBusMessage(HOSTILE), reason=HOSTILE)
    open_entity(page, served, "orders")
    row = page.locator("#panel-messages .messages tbody tr")
    expect(row).to_contain_text(HOSTILE[:40])
    row.click()
    window = page.get_by_role("dialog")
    expect(window.locator("pre.body")).to_contain_text("onerror=")
    expect(window.locator(".properties")).to_contain_text(HOSTILE)
    expect(window.locator(".properties")).to_contain_text("__proto__")
    page.keyboard.press("Escape")
    page.get_by_role("tab", name="Sessions").click()
    expect(page.locator(".sessions tbody")).to_contain_text(HOSTILE)
    open_entity(page, served, "graves", "dead")
    expect(page.locator("#panel-dead .messages tbody tr")).to_contain_text(HOSTILE)
    assert page.locator("img, iframe, object, main script").count() == 0
    assert not is_hacked(page)


@pytest.mark.promise("emulator.page")
def test_hostile_rules_and_destinations_stay_text(page: Page, served: Served) -> None:
    served.topic("prices", "eu")
    rule = RuleProperties("bad", SqlRuleFilter("a = '" + HOSTILE.replace("'", "''") + "'"))
    served.rule("prices", "eu", rule)
    backlog = "contoso/x-servicebus-transfer/0"
    served.queue(backlog, namespace=SECONDARY)
    message = ServiceBusMessage("x", application_properties={"x-ms-path": HOSTILE})
    served.send(backlog, message, namespace=SECONDARY)
    page.goto(served.url)
    expect(page.locator(".destinations tbody")).to_contain_text(HOSTILE[:30])
    open_entity(page, served, subscription_path("prices", "eu"), "rules")
    expect(page.locator(".rules")).to_contain_text("<script>window.hacked=")
    assert not is_hacked(page)


@pytest.mark.promise("emulator.page")
def test_hostile_log_lines_and_settings_stay_text(page: Page, served: Served) -> None:
    served.queue("orders", user_metadata=HOSTILE)
    context = served.emulator.context()
    facts = {"path": HOSTILE, "reason": HOSTILE, "rule": HOSTILE, "kind": HOSTILE, "entity": HOSTILE}
    page.goto(served.url)
    for name in ("entity.refused", "entity.elements_ignored", "fault.thrown", "constructor", HOSTILE):
        served.do(partial(context.publish, name, **facts, elements=[HOSTILE], fragments=[HOSTILE]))
    lines = page.locator(".activity li")
    expect(lines).to_contain_text([HOSTILE[:40]] * 5)
    open_entity(page, served, "orders")
    expect(page.get_by_role("heading", level=1)).to_have_text("orders")
    assert page.locator("img, iframe, object, main script").count() == 0
    assert not is_hacked(page)


@pytest.mark.promise("emulator.page")
def test_hostile_addresses_stay_text(page: Page, served: Served) -> None:
    served.queue("orders")
    for address in (f"#/{quote(HOSTILE)}/{quote(HOSTILE)}/dead", "#/%E0%A4%A/%", f"#/contoso/orders/{quote(HOSTILE)}"):
        page.goto("about:blank")
        page.goto(served.url + address)
        expect(page.locator("#connection")).to_have_text("live")
        assert not is_hacked(page)
    expect(page.get_by_role("heading", level=1)).to_have_text("orders")


def test_bidirectional_control_characters_are_shown(page: Page, served: Served) -> None:
    served.queue("orders")
    served.send("orders", ServiceBusMessage("x", message_id="a\u202eb\u0000c"))
    open_entity(page, served, "orders")
    expect(page.locator("#panel-messages .cell-id")).to_have_text("a⟨202E⟩b␀c")


@pytest.mark.promise("emulator.page")
def test_injected_markup_does_not_run(page: Page, served: Served, watch: Watch) -> None:
    """The browser's own wall behind ours."""
    page.goto(served.url)
    expect(page.locator("#connection")).to_have_text("live")
    refused = page.evaluate(
        """() => { try { document.body.innerHTML = "<b>x</b>"; return false; } catch { return true; } }"""
    )
    assert refused
    ran = page.evaluate(
        """async () => {
            const blocked = new Promise((tell) => addEventListener("securitypolicyviolation", tell, {once: true}));
            const image = document.createElement("img");
            image.src = "http://127.0.0.2:9/x.png";
            document.body.append(image);
            return (await blocked).effectiveDirective;
        }"""
    )
    assert ran == "img-src"
    watch.forget()


def test_no_secret_is_in_a_url_or_stored(page: Page, served: Served, watch: Watch) -> None:
    served.queue("orders")
    open_entity(page, served, "orders")
    expect(page.locator(".hint pre").first).to_contain_text("sbclient send --queue orders")
    assert not any("sig=" in url or "SharedAccess" in url or "SAS_KEY" in url for url in watch.requests)
    kept = page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])")
    assert "Shared" not in kept


def test_the_page_asks_for_another_key_and_does_not_store_it(
    new_page: Callable[..., Page], certificates: Path, watch: Watch
) -> None:
    watch.allows_refusals = True
    with serving_page(certificates, key=KEY) as served:
        served.queue("orders")
        page = new_page()
        page.goto(served.url)
        window = page.get_by_role("dialog")
        expect(window).to_contain_text("has its own key")
        assert "orders" not in page.content()
        window.get_by_label("Key", exact=True).fill("wrong")
        page.keyboard.press("Enter")
        expect(window.get_by_role("alert")).to_contain_text("is not signed with a key")
        window.get_by_label("Key", exact=True).fill(KEY)
        page.keyboard.press("Enter")
        expect(link(page, "orders")).to_be_visible()
        assert KEY not in page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, location.href])")
        page.reload()
        expect(link(page, "orders")).to_be_visible()
        assert not any(quote(KEY) in url or "sig=" in url for url in watch.requests)
        page.close()


def test_without_authorization_the_page_asks_for_no_key(new_page: Callable[..., Page], certificates: Path) -> None:
    with serving_page(certificates, auth="none") as served:
        served.queue("orders")
        page = new_page()
        page.goto(served.url)
        expect(link(page, "orders")).to_be_visible()
        page.close()


class Stranger(BaseHTTPRequestHandler):
    """Some page on the internet, as far as the browser can tell: it has an origin of its own."""

    def do_GET(self) -> None:  # the name is the library's
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>stranger</title>")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def stranger() -> Iterator[str]:
    """The address of a page of another origin."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Stranger) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.mark.promise("emulator.web-pages")
def test_another_page_reads_and_changes_nothing(
    new_page: Callable[..., Page], certificates: Path, stranger: str, watch: Watch
) -> None:
    """Even where everybody may do everything: a browser carries out what any page tells it."""
    with serving_page(certificates, auth="none") as served:
        served.queue("orders")
        served.send("orders", ServiceBusMessage("x"))
        page = new_page()
        page.goto(stranger)
        outcome = page.evaluate(
            """async (emulator) => {
                const asked = (method, what, mode) =>
                    fetch(`${emulator}$control/${what}`, {method, mode, body: method === "POST" ? "{}" : undefined});
                const answers = await Promise.allSettled([
                    asked("POST", "purge", "no-cors"),
                    asked("POST", "reset", "no-cors"),
                    asked("POST", "purge", "cors"),
                    asked("GET", "overview", "cors"),
                ]);
                return answers.map((each) => each.value?.type ?? each.status);
            }""",
            served.url,
        )
        assert outcome == ["opaque", "opaque", "rejected", "rejected"]  # an opaque answer cannot be read
        assert served.count("orders") == 1
        page.evaluate(
            """(emulator) => new Promise((resolve) => {
                const frame = document.createElement("iframe");
                frame.onload = resolve;
                frame.src = emulator;
                document.body.append(frame);
            })""",
            served.url,
        )
        assert all("sbclient" not in frame.title() for frame in page.frames[1:])
        watch.forget()
        page.close()
