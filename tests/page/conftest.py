"""A browser, an emulator and a page for each test; skipped where there is no browser or nothing to drive it with.

After each test the page must have said nothing on the console, and sent requests only to the emulator.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.page.served import Served, serving_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request

BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS: Final = """
    --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
    --disable-component-update --disable-sync
"""
PATIENCE_MS: Final = 20_000
"""A machine may have other things to do."""
REFUSAL: Final = "Failed to load resource: the server responded with a status of 4"
CUT: Final = "Failed to load resource: net::ERR_"


def found_browser() -> str | None:
    """The system's Chromium; `SBCLIENT_TEST_BROWSER` names another."""
    named = os.environ.get("SBCLIENT_TEST_BROWSER")
    return named or next((path for name in BROWSERS if (path := shutil.which(name))), None)


@pytest.fixture(scope="package")  # while it runs no event loop can run in this thread, and other tests need theirs
def browser() -> Iterator[Browser]:
    pytest.importorskip("playwright", reason="playwright drives the browser: python -m pip install '.[browser]'")
    executable = found_browser()
    if executable is None:
        pytest.skip(f"there is no browser here: install one of {', '.join(BROWSERS)}")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=executable, args=FLAGS.split())
        yield launched
        launched.close()


@pytest.fixture(scope="package")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the commands look for the certificate if `XDG_CACHE_HOME` is the folder above."""
    folder = tmp_path_factory.mktemp("cache") / "sbclient"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture(scope="package")
def _served(browser: Browser, certificates: Path) -> Iterator[Served]:
    with serving_page(certificates) as served:
        yield served


@pytest.fixture
def served(_served: Served) -> Served:
    """An emulator with two empty namespaces."""
    _served.clear()
    return _served


class Watch:
    """What a page has said and asked for.

    Attributes:
        allows_refusals: whether the test lets the emulator refuse something, of which Chromium tells on the console.
        allows_cuts: the same for connections that are cut.
        requests: the URLs of everything that was asked for.
    """

    def __init__(self) -> None:
        self.allows_refusals = False
        self.allows_cuts = False
        self.requests: list[str] = []
        self._said: list[str] = []

    def watch(self, page: Page) -> None:
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self._said.append(f"error: {error}"))
        page.on("request", self._asked)

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self._said.append(message.text)

    def _asked(self, request: Request) -> None:
        self.requests.append(request.url)

    def forget(self) -> None:
        """What was said until now was provoked by the test."""
        self._said.clear()
        self.requests.clear()

    def check(self) -> None:
        """Nothing was wrong."""
        allowed = [REFUSAL] * self.allows_refusals + [CUT] * self.allows_cuts
        assert [text for text in self._said if not text.startswith(tuple(allowed))] == []
        assert [url for url in self.requests if not url.startswith(("http://localhost:", "blob:"))] == []


@pytest.fixture
def watch() -> Iterator[Watch]:
    watch = Watch()
    yield watch
    watch.check()


@pytest.fixture
def new_page(browser: Browser, watch: Watch) -> Iterator[Callable[..., Page]]:
    """Makes a page of its own: `new_page(color_scheme="dark", viewport={"width": 375, "height": 800})`."""
    contexts: list[BrowserContext] = []

    def make(**options: Any) -> Page:
        chosen: dict[str, Any] = {"viewport": {"width": 1280, "height": 900}, **options}
        context = browser.new_context(**chosen)
        contexts.append(context)
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        watch.watch(page)
        return page

    yield make
    for context in contexts:
        context.close()


@pytest.fixture
def page(new_page: Callable[..., Page]) -> Page:
    return new_page()
