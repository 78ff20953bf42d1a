"""Makes the pictures of docs/page.md again: `python -m tests.page.make_pictures`, with a browser as the tests need it.

The demo runs with its own seed, so that the pictures differ only in what has changed; it takes about a minute.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from playwright.sync_api import sync_playwright

from sbclient.broker.faults import Fault, FaultKind, NoAnswer
from sbclient.errors import ServiceBusError
from sbclient.message import ServiceBusMessage
from tests.cli.watched_demo import Demo
from tests.page.conftest import FLAGS, found_browser
from tests.page.served import Served, serving_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

FOLDER: Final = Path(__file__).parents[2] / "docs" / "images"
MAX_BYTES: Final = 150_000
SPEED: Final = 12
SCENES: Final = (
    ("failover-1-healthy", "01:00"),
    ("failover-2-suspect", "02:10"),
    ("failover-3-failed-over", "04:00"),
    ("failover-4-draining", "06:30"),
)
"""The state of the pair at each picture."""

AT_LEAST: Final = "(moment) => document.querySelector('.story-time')?.textContent >= moment"


def main() -> None:
    """Make all of them."""
    FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found_browser(), args=FLAGS.split())
        picture_demo(browser)
        with tempfile.TemporaryDirectory() as folder, serving_page(Path(folder)) as served:
            picture_emulator(browser, served)
        browser.close()


def picture_demo(browser: Browser) -> None:
    """The failover from start to end, and how it looks on a phone in the dark."""
    demo = Demo("--speed", str(SPEED))
    try:
        page = opened(browser, demo.url, 1120, 1010)
        phone = opened(browser, demo.url, 375, 812, color_scheme="dark")
        for name, moment in SCENES:
            page.wait_for_function(AT_LEAST, arg=moment)
            save(page.locator(".pair"), name)
            if name.startswith("failover-3"):
                save(page, "overview")
                save(phone, "phone")
        page.locator("#story .state", has_text="over").wait_for(timeout=60_000)
        page.wait_for_timeout(1_000)
        save(page.locator(".pair"), "failover-5-over")
    finally:
        demo.kill()


def picture_emulator(browser: Browser, served: Served) -> None:
    """A partitioned queue of which some fragments fail, and a message in it."""
    served.queue("orders", enable_partitioning=True)
    served.dead_letter("orders", ServiceBusMessage("not an order"), reason="NoOrder")
    for index, kind in ((3, FaultKind.DOWN), (6, FaultKind.HANG), (9, FaultKind.BUSY), (12, FaultKind.SLOW)):
        served.emulator.inject(Fault(kind, "orders", fragments=[index]))
    page = opened(browser, f"{served.url}#/contoso/orders", 1120, 860)
    for number in range(240):
        order = f'{{"order": {number}, "customer": "customer-{number % 40}", "cents": {number * 37 % 9_000 + 100}}}'
        try:
            customer = f"customer-{number % 40}"
            message = ServiceBusMessage(order, message_id=f"order-{number}", subject="new", partition_key=customer)
            served.send("orders", message)
        except (ServiceBusError, NoAnswer):
            continue  # its fragment is struck
        if number % 3 == 0:
            served.receive("orders", 1, deletes=number % 2 == 0)
        page.wait_for_timeout(25)
    page.wait_for_timeout(2_500)
    save(page, "fragments")
    page.locator("#panel-messages .messages tbody tr").first.click()
    page.get_by_role("dialog").wait_for()
    save(page.get_by_role("dialog"), "message")


def opened(browser: Browser, url: str, width: int, height: int, **options: Any) -> Page:
    page = browser.new_context(viewport={"width": width, "height": height}, **options).new_page()
    page.goto(url)
    page.locator("#connection", has_text="live").wait_for()
    return page


def save(what: Any, name: str) -> None:
    """A picture of a page, or of a part of one."""
    path = FOLDER / f"{name}.png"
    what.screenshot(path=path, animations="disabled")
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"{path} has {path.stat().st_size} bytes, {MAX_BYTES} are allowed: show less")


if __name__ == "__main__":
    main()
