"""The list of deviations: complete in itself, shipped, and the same for people and machines."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

import pytest

from sbclient.cli import deviations as module
from sbclient.cli.deviations import AREAS, deviations, page
from sbclient.version import VERSION
from tests.commands import call
from tests.conftest import pytest_runtest_makereport
from tests.marked import arguments_of_markers

ROOT: Final = Path(__file__).parents[1]


def test_the_page_is_the_list() -> None:
    assert (ROOT / "docs" / "deviations.md").read_text(encoding="utf-8") == page(), "run python -m tests.pages"
    assert all(page().count(f"`{each.id}`") == 1 for each in deviations())


def test_ids_name_one_thing_each_and_begin_with_their_area() -> None:
    ids = [each.id for each in deviations()]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(rf"{each.area}\.[a-z0-9]+(-[a-z0-9]+)*", each.id) for each in deviations())
    assert list(dict.fromkeys(each.area for each in deviations())) == list(AREAS)


def test_each_deviation_is_complete_plain_text() -> None:
    for deviation in deviations():
        for text in (deviation.service, deviation.ours, deviation.why):
            assert text == text.strip()
            assert len(text) >= 8
            assert "|" not in text
            assert not text.endswith(".")
        assert re.fullmatch(r"\d+\.\d+\.\d+", deviation.since), deviation.id


def test_none_is_newer_than_the_package() -> None:
    own = tuple(map(int, VERSION.split(".")))
    assert all(tuple(map(int, each.since.split("."))) <= own for each in deviations())


def test_the_list_lies_beside_its_module_so_that_a_wheel_has_it() -> None:
    assert module.__file__ is not None
    assert (Path(module.__file__).parent / "deviations.json").is_file()


def test_the_emulator_lists_deviations() -> None:
    result = call("emulator", "--deviations", "--json")
    assert result.exit_code == 0
    shipped = Path(module.__file__).with_suffix(".json")
    assert json.loads(result.stdout) == json.loads(shipped.read_text(encoding="utf-8"))
    words = call("emulator", "--deviations").stdout
    assert all(f"{each.id}\n" in words for each in deviations())


def test_each_deviation_is_shown_by_a_test_and_each_marker_names_one() -> None:
    shown, listed = {each for _, each in arguments_of_markers("deviation")}, {each.id for each in deviations()}
    assert shown - listed == set(), "markers that name no deviation"
    assert listed - shown == set(), "deviations that no test has as its marker"


def test_a_failed_test_says_which_deviation_it_shows(request: pytest.FixtureRequest) -> None:
    shown = deviations()[0].id
    request.node.add_marker(pytest.mark.deviation(shown))
    failed = pytest.CallInfo[None].from_call(lambda: pytest.fail("broken"), "call")
    pytest_runtest_makereport(request.node, failed)
    assert failed.excinfo is not None
    assert f"this test shows the deviation '{shown}': " in failed.excinfo.exconly()
