"""The page as it is served: where it is found, beside what management clients find, and who is let in."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sbclient.emulator import Emulator
from sbclient.emulator.context import NamespaceContext
from sbclient.emulator.net.http_messages import Response
from sbclient.emulator.page.namespace_registry import NamespaceRegistry
from sbclient.emulator.router import Router
from sbclient.entities import EntityKind
from tests.emulator.amqp.client import create
from tests.emulator.requests import request
from tests.emulator.test_emulator import asked


class Site:
    """Two namespaces, seen through the port of the first."""

    def __init__(self, context: NamespaceContext, beside: NamespaceContext) -> None:
        self.registry = NamespaceRegistry()
        self.registry.add(context, lambda: None)
        self.registry.add(beside, lambda: None)
        self.front = Router(context, self.registry)

    async def ask(self, method: str, target: str, body: bytes = b"", *, token: str = "", **headers: str) -> Response:
        return await self.front.answer(request(method, target, body, authorization=token, **headers))


@pytest.fixture
def site(context: NamespaceContext) -> Site:
    from tests.emulator.page.test_watching import served

    return Site(context, served("beside"))


class TestWhere:
    @pytest.mark.deviation("emulator.control")
    @pytest.mark.parametrize("method", ["GET", "HEAD"])
    async def test_the_page_is_at_the_root(self, site: Site, method: str) -> None:
        answer = await site.ask(method, "/", accept="text/html,*/*")
        assert (answer.status, answer.content_type) == (200, "text/html; charset=utf-8")
        assert "script-src 'self'" in answer.headers["Content-Security-Policy"]
        assert (await site.ask("GET", "/$page/main.js")).status == 200

    async def test_management_clients_are_answered_at_the_root(self, site: Site) -> None:
        feed = await site.front.answer(request("GET", "/"))
        assert (feed.status, feed.content_type) == (200, "application/atom+xml;type=feed;charset=utf-8")
        for answer in (await site.ask("GET", "/?api-version=2021-05"), await site.ask("PUT", "/")):
            assert answer.status in (400, 401)
            assert answer.content_type.startswith("application/xml")

    @pytest.mark.parametrize("target", ["/$page", "/$page/", "/$page/no.js", "/$page/a/b", "/$page/..%2Ffront.py"])
    async def test_unknown_file_is_not_found(self, site: Site, target: str) -> None:
        assert (await site.ask("GET", target)).status == 404

    async def test_it_is_read_only(self, site: Site) -> None:
        assert (await site.ask("POST", "/$page/main.js")).status == 405

    async def test_no_entity_can_be_in_its_way(self, site: Site, context: NamespaceContext) -> None:
        create(context.host, EntityKind.QUEUE, "page")
        answer = await site.front.answer(request("GET", "/page"))
        assert answer.content_type.startswith("application/atom+xml")


class TestWho:
    async def test_page_needs_no_right_but_its_data_does(self, site: Site) -> None:
        assert (await site.ask("GET", "/")).status == 200
        assert (await site.ask("GET", "/$control/overview")).status == 401


class TestNeighbours:
    async def test_each_port_reaches_the_control_api_of_all(self, site: Site) -> None:
        answer = await site.front.answer(request("GET", "/$control/state?namespace=beside"))
        assert json.loads(answer.body)["namespace"] == "beside"
        assert (await site.front.answer(request("GET", "/$control/state?namespace=none"))).status == 404

    async def test_health_is_that_of_the_own_namespace(self, site: Site) -> None:
        assert list(json.loads((await site.ask("GET", "/health")).body)["namespaces"]) == ["contoso"]


@pytest.fixture
async def both(certificates: Path) -> AsyncIterator[Emulator]:
    async with Emulator("a", "b", http_port=0, certificate_directory=certificates) as served:
        yield served


@pytest.mark.real_time
async def test_every_port_shows_all_namespaces(both: Emulator) -> None:
    assert both.http_port
    for port in (*both.ports.values(), both.http_port):
        status, said = await asked(port, "GET", "/$control/overview")
        assert status == 200
        assert [each["name"] for each in said["namespaces"]] == ["a", "b"]
        assert said["about"] == {"http_port": both.http_port, "ports": dict(both.ports)}
