"""`sbclient demo --page` without a browser: the data of its page, and its exit."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.request import urlopen

import pytest

from tests.cli.watched_demo import Demo
from tests.commands import call, start

pytestmark = pytest.mark.slow


@pytest.fixture
def demo() -> Iterator[Demo]:
    started = Demo("--messages", "200", "--speed", "400")
    yield started
    started.kill()


def overview(demo: Demo) -> Any:
    with urlopen(f"{demo.url}$control/overview") as answer:
        return json.load(answer)


def minutes(seconds: float) -> str:
    return f"{int(seconds) // 60:02}:{int(seconds) % 60:02}"


def test_page_shows_the_pair_until_all_messages_are_delivered(demo: Demo) -> None:
    with urlopen(demo.url) as answer:
        assert b"sbclient emulator" in answer.read()
    states, drained = set[str](), set[int]()
    story: dict[str, Any] = {}
    while not story.get("is_over"):
        seen = overview(demo)
        story = seen["story"] or {}
        drained |= {each["value"] for each in story.get("numbers", ()) if each["name"] == "drained"}
        for pair in seen["pairs"]:
            states |= {entity["state"] for entity in pair["client"]["entities"]}
    numbers = {each["name"]: each["value"] for each in story["numbers"]}
    assert numbers["lost"] == 0
    assert numbers["delivered"] == numbers["sent"] == 200
    assert numbers["drained"] == numbers["diverted"] > 0
    assert len(drained) > 2  # it grows while the syphon runs
    assert {"healthy", "failed_over"} <= states
    names = {event["name"] for event in seen["pairs"][0]["client"]["events"]}
    assert {"failover.suspected", "failover.engaged", "failover.recovered"} <= names
    happened = {
        (minutes(event["at"] - story["started_at"]), event["path"]) for event in seen["pairs"][0]["client"]["events"]
    }
    lines = re.findall(r"^(\d\d:\d\d)  (\w+): ", call("demo", "--messages", "200").stdout, re.M)
    assert set(lines) == happened  # the terminal shows the same seed in the same minutes
    status, said = demo.interrupt()
    assert status == 0
    assert any("sent 200" in line and "lost 0" in line for line in said.splitlines())  # not cut to a terminal's width
    assert "Traceback" not in said


def test_ctrl_c_before_the_end_has_status_130() -> None:
    demo = Demo("--speed", "1")
    try:
        status, said = demo.interrupt()
    finally:
        demo.kill()
    assert status == 130
    assert "Traceback" not in said


def test_port_in_use_is_one_line(demo: Demo) -> None:
    port = demo.url.rpartition(":")[2].strip("/")
    with start("demo", "--page", "--page-port", port) as run:
        said = run.communicate()[1]
    assert run.returncode == 2
    assert port in said
    assert "Traceback" not in said
