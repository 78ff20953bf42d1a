"""Entities are created, changed and deleted on the page; connection strings and commands work as they are printed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from sbclient.rules.connection_string import parse_connection_string
from tests.page.conftest import Watch
from tests.page.served import Served, serving_page
from tests.page.test_looking import expect, link, open_entity

Page = Any
Locator = Any
KEY = "a key of its own"
SBCLIENT = f'sbclient() {{ {sys.executable} -m sbclient "$@"; }}'


def submit(page: Page, action: str) -> None:
    page.get_by_role("dialog").get_by_role("button", name=action, exact=True).click()


def described(served: Served, path: str) -> Any:
    entity = served.do(lambda: served.emulator.context().host.namespace.directory.get(path))
    return None if entity is None else entity.description


def test_a_queue_is_created_changed_and_deleted(page: Page, served: Served, watch: Watch) -> None:
    watch.allows_refusals = True
    page.goto(served.url)
    page.get_by_role("button", name="New queue…").first.click()
    window = page.get_by_role("dialog")
    window.get_by_label("Name").fill("my orders")
    window.get_by_label("Lock duration").fill("1 s")
    window.get_by_label("Enable partitioning").check()
    submit(page, "Create")
    expect(window.get_by_role("alert")).to_contain_text("'my orders' cannot name a queue: use letters, digits")
    window.get_by_label("Name").fill("orders")
    submit(page, "Create")
    expect(window.get_by_role("alert")).to_contain_text("lock_duration of orders is 0:00:01: it must be between")
    window.get_by_label("Lock duration").fill("30s")
    submit(page, "Create")
    expect(page.get_by_role("heading", level=1)).to_have_text("orders")
    expect(page.locator(".view-head .badges")).to_contain_text("partitioned, 16 fragments")
    assert described(served, "orders").lock_duration == timedelta(seconds=30)

    page.get_by_role("button", name="Change…").click()
    expect(window.get_by_label("Lock duration")).to_have_value("30 s")
    expect(window.get_by_label("Enable partitioning (fixed at creation)")).to_be_disabled()
    window.get_by_label("Max delivery count").fill("many")
    submit(page, "Change")
    expect(window.get_by_role("alert")).to_have_text("max_delivery_count is 'many': it must be a whole number")
    window.get_by_label("Max delivery count").fill("3")
    window.get_by_label("Status").select_option("SendDisabled")
    submit(page, "Change")
    expect(page.locator(".view-head .badges")).to_contain_text("SendDisabled")
    assert described(served, "orders").max_delivery_count == 3

    page.get_by_role("button", name="Delete…").click()
    expect(window).to_contain_text("The queue will be deleted with 0 messages")
    expect(window.get_by_role("button", name="Cancel")).to_be_focused()
    submit(page, "Cancel")
    assert described(served, "orders") is not None
    page.get_by_role("button", name="Delete…").click()
    submit(page, "Delete orders")
    expect(link(page, "orders")).to_have_count(0)
    assert described(served, "orders") is None
    activity = page.get_by_role("region", name="Activity").locator("li")
    expect(activity).to_contain_text(["orders deleted", "orders changed", "orders created"])
    page.reload()
    expect(activity).to_contain_text(["orders deleted", "orders changed", "orders created"])


def test_a_topic_gets_subscriptions_and_rules(page: Page, served: Served, watch: Watch) -> None:
    watch.allows_refusals = True
    page.goto(served.url)
    page.get_by_role("button", name="New topic…").first.click()
    window = page.get_by_role("dialog")
    window.get_by_label("Name").fill("prices")
    submit(page, "Create")
    page.get_by_role("button", name="New subscription…").click()
    window.get_by_label("Name").fill("eu")
    submit(page, "Create")
    page.locator("#panel-subscriptions").get_by_role("link", name="eu").click()
    page.get_by_role("tab", name="Rules").click()
    page.get_by_role("button", name="New rule…").click()
    window.get_by_label("Name").fill("cheap")
    window.get_by_label("SQL expression", exact=True).fill("price <")
    submit(page, "Create")
    expect(window.get_by_role("alert")).to_contain_text("line 1, column 8: found the end, expected a value")
    window.get_by_label("SQL expression", exact=True).fill("price < 10")
    submit(page, "Create")
    rows = page.locator(".rules tbody tr")
    expect(rows).to_have_count(2)
    page.get_by_role("button", name="Delete rule $Default").click()
    submit(page, "Delete rule $Default")
    expect(rows).to_have_count(1)
    page.get_by_role("button", name="Change rule cheap").click()
    expect(window.get_by_label("SQL expression", exact=True)).to_have_value("price < 10")
    window.get_by_label("Accepts messages by").select_option("correlation")
    window.get_by_label("Label", exact=True).fill("new")
    window.get_by_label("Application properties").fill("country=IE\nprice:=5")
    submit(page, "Change")
    expect(rows).to_contain_text("sys.label = 'new' AND country = 'IE' AND price = 5")
    page.get_by_role("button", name="Delete…", exact=True).click()
    submit(page, "Delete prices/Subscriptions/eu")
    expect(link(page, "prices/Subscriptions/eu")).to_have_count(0)
    expect(link(page, "prices")).to_be_visible()


def paste(text: str, cache: Path) -> str:
    """Run lines in a shell, as a user who pastes them.

    Args:
        cache: of the user, with the certificate.
    """
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "XDG_CACHE_HOME": str(cache)}
    environment.pop("SERVICEBUS_CONNECTION_STRING", None)
    done = subprocess.run(
        ["bash", "-ec", f"{SBCLIENT}\n{text}"], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def copied(page: Page, button: Locator) -> str:
    button.click()
    return str(page.evaluate("navigator.clipboard.readText()"))


def test_printed_commands_work_when_they_are_pasted(
    new_page: Callable[..., Page], served: Served, certificates: Path
) -> None:
    page = new_page(permissions=["clipboard-read", "clipboard-write"])
    page.goto(served.url)
    printed = page.get_by_role("region", name="Namespace contoso", exact=True).locator(".hint")
    assert paste(printed.locator("pre").inner_text(), certificates.parent) == "created queue orders\n"
    expect(link(page, "orders")).to_be_visible()
    served.queue("jobs", requires_session=True)
    served.topic("prices", "eu")
    for path in ("jobs", "prices/Subscriptions/eu"):
        open_entity(page, served, path)
        hint = page.locator("#panel-messages .hint")
        expect(hint.locator("pre")).to_contain_text(path.split("/")[0])
        text = hint.locator("pre").inner_text()
        assert copied(page, hint.get_by_role("button", name="Copy the commands")) == text
        paste(text, certificates.parent)
        expect(page.locator("#panel-messages .messages tbody tr")).to_contain_text("hello")
    page.close()


def test_a_connection_string_is_copied_and_its_key_hidden_until_asked_for(
    new_page: Callable[..., Page], served: Served, certificates: Path, watch: Watch
) -> None:
    watch.allows_refusals = True
    page = new_page(permissions=["clipboard-read", "clipboard-write"])
    page.goto(served.url)
    part = page.locator(".connection-string").first
    expect(part.locator("code")).to_contain_text(f"Endpoint=sb://localhost:{served.emulator.ports['contoso']};")
    assert "SAS_KEY_VALUE" not in page.locator(".connection-string").all_inner_texts()[0]
    assert copied(page, part.get_by_role("button", name="Copy the connection")) == served.emulator.connection_string
    part.get_by_role("button", name="Show key of contoso").click()
    expect(part.locator("code")).to_have_text(served.emulator.connection_string)
    with serving_page(certificates, key=KEY) as own:
        page.goto(own.url)
        window = page.get_by_role("dialog")
        window.get_by_label("Key", exact=True).fill(KEY)
        page.keyboard.press("Enter")
        expect(part.locator("code")).to_contain_text("\u2022\u2022")
        assert copied(page, part.get_by_role("button", name="Copy the connection")) == own.emulator.connection_string
        assert KEY not in page.content()
        assert "SharedAccessKey" not in page.locator(".hint").first.inner_text()
        page.reload()
        part.get_by_role("button", name="Show key of contoso").click()
        window.get_by_label("Key", exact=True).fill("wrong")
        page.keyboard.press("Enter")
        expect(window.get_by_role("alert")).to_contain_text("did not sign the token")
        window.get_by_label("Key", exact=True).fill(KEY)
        page.keyboard.press("Enter")
        expect(part.locator("code")).to_have_text(own.emulator.connection_string)
        assert parse_connection_string(part.locator("code").inner_text()).host == "localhost"
        assert KEY not in page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, location.href])")
        assert not any("SharedAccess" in url or "own" in url for url in watch.requests)
        page.close()
