"""The page of metrics and the alerts say what there is."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from sbclient import prometheus
from sbclient.rules.failover import FailoverEvent, FailoverState
from sbclient.telemetry import metrics, tracing
from sbclient.telemetry.metrics import Instrument, InstrumentKind

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
ALERTS: Final = (ROOT / "examples" / "deploy" / "prometheus-alerts.yml").read_text(encoding="utf-8")

NAME: Final = re.compile(r"\b(?:sbclient|messaging)_[a-z_]+")
LABEL: Final = re.compile(r"\{([^{}]*)\}|by \(([^()]*)\)|\$labels\.([a-z_]+)")
OF_PROMETHEUS: Final = {"le", "instance", ""}
DASHBOARD: Final = json.loads((ROOT / "examples" / "deploy" / "grafana-dashboard.json").read_text(encoding="utf-8"))
QUERIES: Final = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def row(instrument: Instrument) -> str:
    attributes = ", ".join(f"`{name}`" for name in instrument.attributes)
    cells = (f"`{instrument.name}`", instrument.kind, f"`{instrument.unit}`", attributes, instrument.description)
    return f"| {' | '.join(cells)} |"


def prometheus_name(instrument: Instrument) -> str:
    unit = "_seconds" if instrument.unit == "s" else ""
    total = "_total" if instrument.kind is InstrumentKind.COUNTER else ""
    return instrument.name.replace(".", "_") + unit + total


def test_the_table_of_metrics_is_the_one_in_the_code() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith(("| `messaging.client.", "| `sbclient."))]
    table = [line for line in rows if line.count("|") == 6]
    assert table == [row(instrument) for instrument in metrics.INSTRUMENTS]


def test_documentation_lists_the_values_of_every_attribute() -> None:
    explained = set(re.findall(r"`((?:messaging|server|error|sbclient)\.[a-z_.]+)`", PAGE.split("## Every metric")[1]))
    assert {name for one in metrics.INSTRUMENTS for name in one.attributes} - {metrics.SYSTEM} <= explained
    for value in (*FailoverState, *FailoverEvent):
        assert f"`{value}`" in PAGE


def test_every_span_is_on_the_page() -> None:
    names = {
        value
        for key, value in vars(tracing).items()
        if not key.startswith("__")
        and isinstance(value, str)
        and re.fullmatch(r"(ServiceBus|sbclient)\.[a-z_]+", value)
    }
    assert {name for name in names if name not in PAGE} == set()


@pytest.fixture
def exposed() -> Iterator[set[str]]:
    """The names that Prometheus sees, with one value of every metric."""

    class Everything:
        def measured(self) -> Iterator[tuple[Instrument, float, metrics.Attributes]]:
            for instrument in metrics.INSTRUMENTS:
                yield instrument, 1, {}

    everything = Everything()
    prometheus.start()
    metrics.watch(everything)
    for instrument in metrics.INSTRUMENTS:
        if instrument.kind is InstrumentKind.COUNTER:
            metrics.add(instrument, 1, {})
        elif instrument.kind is InstrumentKind.HISTOGRAM:
            metrics.record(instrument, 1.0, {})
    text = prometheus.exposition()[1].decode()
    yield {line.split("{")[0].split(" ")[0] for line in text.splitlines() if not line.startswith("#")}
    prometheus.stop()


def test_prometheus_sees_every_metric_under_the_name_that_the_page_derives(exposed: set[str]) -> None:
    for instrument in metrics.INSTRUMENTS:
        name = prometheus_name(instrument)
        assert (f"{name}_bucket" if instrument.kind is InstrumentKind.HISTOGRAM else name) in exposed
    assert set(NAME.findall(PAGE)) - labels() <= exposed


def labels() -> set[str]:
    return {name.replace(".", "_") for instrument in metrics.INSTRUMENTS for name in instrument.attributes}


def test_the_alerts_use_names_and_labels_that_there_are(exposed: set[str]) -> None:
    assert ALERTS.count("- alert:") >= 8
    assert len(re.findall(r"^ +expr: .", ALERTS, re.M)) == ALERTS.count("- alert:")
    assert set(NAME.findall(ALERTS)) <= exposed | labels()
    used = {
        name.split("!")[0].split("=")[0].strip()
        for found in LABEL.findall(ALERTS)
        for group in found
        for name in group.split(",")
        if "severity" not in group and "$" not in group
    }
    assert used <= labels() | OF_PROMETHEUS
    assert {"sbclient_state", "sbclient_route", "messaging_destination_name"} <= used


def test_every_query_of_the_dashboard_names_a_metric_and_labels_that_there_are(exposed: set[str]) -> None:
    assert len(QUERIES) >= len(DASHBOARD["panels"])
    for query in QUERIES:
        names = set(NAME.findall(query)) - labels()
        assert names
        assert names <= exposed
    legends = [target["legendFormat"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    assert {name for legend in legends for name in re.findall(r"{{(\w+)}}", legend)} <= labels() | OF_PROMETHEUS


def test_each_metric_of_the_worker_and_of_credentials_has_an_alert_and_a_panel() -> None:
    for instrument in (
        metrics.WORKER_READY,
        metrics.WORKER_PAUSED,
        metrics.NAMESPACE_REACHABLE,
        metrics.CREDENTIAL_REJECTIONS,
    ):
        assert prometheus_name(instrument) in ALERTS
        assert any(prometheus_name(instrument) in query for query in QUERIES)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool of Prometheus is not installed")
def test_prometheus_accepts_the_alerts_and_the_queries(tmp_path: Path) -> None:
    rules = tmp_path / "queries.yml"
    rate = [query.replace("$__rate_interval", "5m") for query in QUERIES]
    records = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(rate)]
    rules.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": records}]}), encoding="utf-8")
    for file in (ROOT / "examples" / "deploy" / "prometheus-alerts.yml", rules):
        checked = subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_alerts_are_balanced_and_within_their_lines() -> None:
    for rule in ALERTS.split("- alert:")[1:]:
        expression = rule.split("expr:")[1].split("labels:")[0]
        for opening, closing in ("()", "{}", "[]"):
            assert expression.count(opening) == expression.count(closing), rule
        assert expression.count('"') % 2 == 0
        assert "summary:" in rule
        assert "description:" in rule
    assert "\t" not in ALERTS
