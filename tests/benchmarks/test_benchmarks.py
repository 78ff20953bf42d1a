"""The table of benchmarks runs. Its bounds are not checked here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, Literal

import pytest

from tests.benchmarks.__main__ import main, report
from tests.benchmarks.draining import Pair
from tests.benchmarks.entered import entered
from tests.benchmarks.growth import ROWS as GROWTH_ROWS
from tests.benchmarks.growth import Costs
from tests.benchmarks.growth import Row as GrowthRow
from tests.benchmarks.row import Result, Row, Sample, Settings, sample
from tests.benchmarks.sending import QUEUE
from tests.stage.counting import EmulatorProcess

ROOT: Final = Path(__file__).parents[2]
SAMPLE: Final = ("send-concurrent", "receive-command", "divert", "memory")
"""One row of each kind; `.ci/proofs benchmarks` runs all of them."""


def row(bound: float, *, is_most: bool = False) -> Row:
    return Row("send", "this / that", bound, _never, is_most)


async def _never(settings: Settings) -> Result:
    raise NotImplementedError


def status(row: Row, result: Result, *, quick: bool = False) -> str:
    found: str = report(row, result, Settings(5, quick))["status"]
    return found


@pytest.mark.slow
def test_rows_run() -> None:
    command = [sys.executable, "-m", "tests.benchmarks", "--quick", "--json", *SAMPLE]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    found: list[dict[str, Any]] = json.loads(ended.stdout)
    assert [each["name"] for each in found] == list(SAMPLE)
    for each in found:
        assert each["status"] == ("not run" if each["reason"] else "quick")
        assert (each["ratio"] is None) == bool(each["reason"])
        assert all(side["messages_per_s"] > 0 for side in each["sides"].values())


@pytest.mark.slow
@pytest.mark.real_time
@pytest.mark.parametrize("ordering", ["none", "session"])
async def test_syphon_receives_each_backlog_message_once(ordering: Literal["none", "session"]) -> None:
    count = 200
    with EmulatorProcess() as server:
        server.create_queue(QUEUE, requires_session=ordering == "session")
        pair = Pair(server, ordering)
        side = pair.syphon_side("syphon", count, lambda: pair.fill(count, lambda number: f"s{number % 50}"))
        found = await sample(server, side)
    assert pair.deliveries == [1.0]
    assert found.rate > 0


@pytest.mark.real_time
async def test_operation_enters_a_limited_number_of_functions(capsys: pytest.CaptureFixture[str]) -> None:
    bounds = {"awaited send": 200, "diverted send": 230, "receive and complete": 250, "drained message": 280}
    for name, found in (await entered()).items():
        with capsys.disabled():
            print(f"\n{name}: {found.functions:.1f} functions in {found.files:.0f} files")
        assert 20 < found.functions <= bounds[name]


def test_row_misses_its_bound_by_its_median_ratio() -> None:
    assert status(row(2.0), Result([1.0, 2.5, 2.0])) == "met"
    assert status(row(2.0), Result([1.9, 2.5, 1.0])) == "missed"
    assert status(row(2.0, is_most=True), Result([1.9, 2.5, 1.0])) == "met"
    assert status(row(2.0, is_most=True), Result([2.1, 2.5, 1.0])) == "missed"


def test_row_misses_by_another_condition() -> None:
    assert status(row(2.0), Result([3.0], misses=["delivered twice"])) == "missed"


def test_row_without_its_peer_does_not_pass() -> None:
    assert status(row(2.0), Result(not_run="RabbitMQ is not installed")) == "not run"


def test_quick_run_checks_no_bound() -> None:
    assert status(row(2.0), Result([1.0]), quick=True) == "quick"


def test_report_has_medians_and_peaks_of_each_side() -> None:
    samples = [Sample(10, seconds, seconds / 2, seconds / 5, 50 * seconds, 30.0, None) for seconds in (1.0, 2.0, 4.0)]
    side = report(row(2.0), Result([1.0], {"ours": samples}), Settings(5, False))["sides"]["ours"]
    expected = {"messages": 10, "messages_per_s": 5, "client_us": 1e5, "server_us": 4e4, "client_mib": 200}
    assert side == pytest.approx(expected | {"server_mib": 30})


def test_unknown_row_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["send-nothing"])
    assert ended.value.code == 2
    assert "send-nothing" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.real_time
@pytest.mark.parametrize("row", GROWTH_ROWS, ids=[row.name for row in GROWTH_ROWS])
async def test_each_cost_is_measured(row: GrowthRow) -> None:
    assert all(cost >= 0 for cost in (await row.measure(20)).values())


async def _costs(size: int) -> Costs:
    raise NotImplementedError


@pytest.mark.parametrize(
    ("costs", "missed"),
    [
        ([{"send, µs": 10.0}, {"send, µs": 15.0}, {"send, µs": 14.0}], 0),
        ([{"send, µs": 10.0}, {"send, µs": 15.1}, {"send, µs": 14.0}], 1),
        ([{"send, µs": 0.1}, {"send, µs": 2.9}], 0),
        ([{"send, µs": 10.0, "bytes": 100.0}, {"send, µs": 10.0, "bytes": 101.0}], 1),
        ([{"pause, ms": 10.0}, {"pause, ms": 1000.0}], 0),
    ],
    ids=["flat", "grows", "little", "bound", "may grow"],
)
def test_cost_misses_that_grows_or_exceeds_its_bound(costs: list[Costs], missed: int) -> None:
    row = GrowthRow("row", _costs, most={"bytes": 100}, not_flat=("pause, ms",))
    assert len(row.misses(costs)) == missed
