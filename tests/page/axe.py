"""Checks every view and dialog of the page with axe-core: `python -m tests.page.axe`. npm fetches it, to the cache.

The views are checked wide and light, wide and dark, and narrow. The exit status is 1 if there is a finding.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from playwright.sync_api import sync_playwright

from sbclient.message import ServiceBusMessage
from tests.page.conftest import FLAGS, found_browser
from tests.page.served import SECONDARY, Served, serving_page
from tests.page.test_looking import fill
from tests.wire.programs import cache_of

if TYPE_CHECKING:
    from playwright.sync_api import Page

VERSION: Final = "4.14.1"
LOOKS: Final[dict[str, dict[str, Any]]] = {
    "light": {"viewport": {"width": 1280, "height": 1000}},
    "dark": {"viewport": {"width": 1280, "height": 1000}, "color_scheme": "dark"},
    "narrow": {"viewport": {"width": 375, "height": 800}},
}
PATHS: Final = ("orders", "jobs", "prices", "prices/Subscriptions/eu")
DIALOGS: Final = ("Send…", "Change…", "Purge…", "Delete…")
RUN: Final = """async () => {
    const {violations, passes} = await axe.run(document, {resultTypes: ["violations"]});
    const nodes = violations.flatMap(({id, impact, nodes}) => nodes.map((each) => `${id} (${impact}): ${each.html}`));
    return {nodes, passed: passes.length};
}"""


def main() -> int:
    """Check everything; returns the exit status."""
    source = fetched().read_text(encoding="utf-8")
    checked = 0
    findings: set[str] = set()
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder, serving_page(Path(folder)) as served:
        browser = playwright.chromium.launch(executable_path=found_browser(), args=FLAGS.split())
        fill(served)
        served.queue("contoso/x-servicebus-transfer/0", namespace=SECONDARY)
        diverted = ServiceBusMessage("x", application_properties={"x-ms-path": "orders"})
        served.send("contoso/x-servicebus-transfer/0", diverted, namespace=SECONDARY)
        for look, options in LOOKS.items():
            page = browser.new_context(bypass_csp=True, reduced_motion="reduce", **options).new_page()
            for view in views(page, served):
                page.evaluate(source)
                result = page.evaluate(RUN)
                checked += 1
                for node in result["nodes"]:
                    if node not in findings:
                        print(f"{look}, {view}: {node[:300]}")  # noqa: T201
                    findings.add(node)
        browser.close()
    print(f"axe-core {VERSION}: {checked} views checked, {len(findings)} findings")  # noqa: T201
    return 1 if findings else 0


def views(page: Page, served: Served) -> Iterator[str]:
    """Open each view and dialog; yields its name."""
    page.goto("about:blank")
    page.goto(served.url)
    page.locator(".pair .destinations tbody tr").wait_for()
    page.get_by_text("Faults of the namespace").first.click()
    yield "overview"
    for name in ("New queue…", "New topic…", "Keyboard shortcuts and help"):
        yield from dialog(page, page.get_by_role("button", name=name).first, name)
    for path in PATHS:
        page.goto(f"{served.url}#/contoso/{path.replace('/', '%2F')}")
        page.locator(".view-head .state").wait_for()
        for tab in page.get_by_role("tab").all():
            if tab.is_visible():
                tab.click()
                page.wait_for_timeout(300)
                yield f"{path}, {tab.inner_text()}"
                for name in ("New rule…", "New subscription…"):
                    button = page.get_by_role("button", name=name)
                    if button.is_visible():
                        yield from dialog(page, button, name)
        for name in DIALOGS:
            button = page.locator(".view-head").get_by_role("button", name=name)
            if button.is_visible():
                yield from dialog(page, button, f"{path}, {name}")
    page.goto(f"{served.url}#/contoso/orders/messages")
    row = page.locator("#panel-messages .messages tbody tr").first
    yield from dialog(page, row, "a message")


def dialog(page: Page, opener: Any, name: str) -> Iterator[str]:
    opener.click()
    page.get_by_role("dialog").wait_for()
    yield name
    page.keyboard.press("Escape")


def fetched() -> Path:
    """The file of axe-core."""
    path = cache_of("axe") / "node_modules" / "axe-core" / "axe.min.js"
    if not path.exists() or f"axe v{VERSION}" not in path.read_text(encoding="utf-8")[:200]:
        command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", f"axe-core@{VERSION}"]
        subprocess.run(command, cwd=cache_of("axe"), check=True, stdout=subprocess.DEVNULL)
    return path


if __name__ == "__main__":
    sys.exit(main())
