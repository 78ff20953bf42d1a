from __future__ import annotations

import gc
import json
import logging
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from sbclient import clock
from sbclient.errors import InvalidOperationError, ServiceBusAuthenticationError
from sbclient.testing import Fault, FaultKind
from sbclient.transport.memory.transport import drop_memory_host, memory_host
from sbclient_spark.clients import WorkerClients, open_client, worker_clients
from sbclient_spark.options import Destination
from sbclient_spark.write.message_ids import MessageIdPlan
from sbclient_spark.write.options import write_options
from sbclient_spark.write.reports import DIGEST_BYTES, SessionDigests, TaskReport, split_sessions
from sbclient_spark.write.row_errors import WriteFailedError
from sbclient_spark.write.schema import RowPlan
from sbclient_spark.write.task import TaskPlace, TaskResult, WritePlan, check_sessions, plan_write, run_task
from tests.fresh_process import output_of

PLACE = TaskPlace(partition=2, attempt=0, attempt_id=9, query_id="query", batch_id=4)
PAIRED = {"connectionString": "memory://written", "secondaryConnectionString": "memory://written-backup"}


@pytest.fixture
def clients() -> Iterator[WorkerClients]:
    found = worker_clients()
    memory_host("written")
    memory_host("written-backup")

    async def create() -> None:
        options = write_options({**PAIRED, "queue": "orders"})
        async with open_client(options.connection, paired=False) as client:
            await client.administration.create_queue("orders", requires_duplicate_detection=True)

    found.run(create())
    yield found
    found.run(found.close())
    drop_memory_host("written")
    drop_memory_host("written-backup")


def plan(ids: str = "position", body: int = 0, session: int | None = None, **options: Any) -> WritePlan:
    texts = {name: str(value) for name, value in options.items()}
    return WritePlan(
        options=write_options({**PAIRED, "queue": "orders", **texts}),
        rows=RowPlan(
            ids=MessageIdPlan(mode=ids),  # type: ignore[arg-type]  # each mode by its name
            body=body,
            attributes=(("session_id", session),) if session is not None else (),
            destination=Destination("orders"),
        ),
        mixes_keys=True,
    )


def batches(count: int, size: int = 700) -> Iterator[pa.RecordBatch]:
    for start in range(0, count, size):
        yield pa.record_batch({"body": [str(number) for number in range(start, min(start + size, count))]})


def stored(clients: WorkerClients) -> list[int]:
    async def peek() -> list[int]:
        async with open_client(plan().options.connection, paired=False) as client:
            found: list[int] = []
            receiver = client.get_queue_receiver("orders")
            while page := await receiver.peek_messages(1000, sequence_number=len(found) + 1):
                found += [int(str(message)) for message in page]
            return found

    return clients.run(peek())


def test_a_task_returns_when_every_row_was_acknowledged(clients: WorkerClients) -> None:
    result = run_task(plan(), batches(2500), PLACE)
    assert (result.report.rows, result.report.sent, result.report.partition) == (2500, 2500, 2)
    assert result.report.connect_ms > 0
    assert sorted(stored(clients)) == list(range(2500))
    assert pickle.loads(pickle.dumps(result)) == result


def test_a_long_task_logs_its_progress(
    clients: WorkerClients, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_task(plan(), batches(1400), PLACE)
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]
    monkeypatch.setattr("sbclient_spark.write.task.PROGRESS_S", 0.0)
    run_task(plan(), batches(1400), PLACE)
    lines = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert len(lines) == 2
    assert "of 1400 rows so far, 0 of them to the backlog" in lines[-1]


def test_the_same_task_again_adds_nothing_and_has_its_client_already(clients: WorkerClients) -> None:
    first = run_task(plan(), batches(300), PLACE).report
    again = run_task(plan(), batches(300), TaskPlace(2, 1, 10, "query", 4)).report
    assert (first.sent, again.sent, again.connect_ms) == (300, 300, 0.0)
    assert len(stored(clients)) == 300


def test_rows_that_name_their_queue_share_transfers(clients: WorkerClients) -> None:
    rows = RowPlan(ids=MessageIdPlan(mode="content"), body=0, attributes=(("session_id", 1),), queue=2)
    named = WritePlan(options=write_options(PAIRED), rows=rows, mixes_keys=False)
    columns = {"body": [str(n) for n in range(200)], "session_id": [f"s{n}" for n in range(200)]}
    report = run_task(named, [pa.record_batch(columns | {"queue": ["orders"] * 200})], PLACE).report
    assert (report.sent, report.row_errors) == (200, 0)
    assert report.batches <= 4
    assert sorted(stored(clients)) == list(range(200))


def test_another_micro_batch_has_other_ids(clients: WorkerClients) -> None:
    run_task(plan(), batches(100), PLACE)
    run_task(plan(), batches(100), TaskPlace(2, 0, 10, "query", 5))
    assert len(stored(clients)) == 200


def test_a_stream_with_the_message_ids_of_a_batch_job_is_rejected() -> None:
    numbered = {**PAIRED, "queue": "orders", "dryRun": "encode", "txnAppId": "nightly", "txnVersion": "1"}
    body = StructType([StructField("body", StringType())])
    assert plan_write(body, numbered, is_streaming=False).rows.ids.transaction == ("nightly", 1)
    with pytest.raises(InvalidOperationError):
        plan_write(body, numbered, is_streaming=True)


def test_cycles_are_collected_rarely_while_a_task_sends(clients: WorkerClients) -> None:
    before, during = gc.get_threshold(), []

    def watching() -> Iterator[pa.RecordBatch]:
        for batch in batches(2000):
            during.append(gc.get_threshold()[0])
            yield batch

    run_task(plan(), watching(), PLACE)
    assert min(during[2:]) > before[0]
    assert gc.get_threshold() == before


def test_a_task_without_rows_opens_no_connection(clients: WorkerClients) -> None:
    report = run_task(plan(connectionString="memory://nowhere"), iter(()), PLACE).report
    assert (report.sent, report.connect_ms) == (0, 0.0)


def test_an_unknown_micro_batch_is_rejected_before_anything_is_sent(clients: WorkerClients) -> None:
    with pytest.raises(InvalidOperationError):
        run_task(plan(), batches(10), TaskPlace(2, 0, 9))
    assert stored(clients) == []


def test_an_error_of_the_source_of_the_rows_ends_the_task(clients: WorkerClients) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield from batches(1000)
        raise EOFError("the engine is gone")

    with pytest.raises(EOFError):
        run_task(plan(), broken(), PLACE)
    assert run_task(plan(), batches(10), PLACE).report.sent == 10


def test_a_failed_task_logs_what_it_did(clients: WorkerClients, caplog: pytest.LogCaptureFixture) -> None:
    bad = pa.record_batch({"body": ["a", None]})
    with pytest.raises(WriteFailedError) as caught, caplog.at_level(logging.INFO, "sbclient_spark"):
        run_task(plan(), iter([bad]), PLACE)
    assert "partition 2, row 1" in str(caught.value)
    assert {"task.failed", "task.ended"} <= {vars(record)["event_name"] for record in caplog.records}


def test_bad_rows_of_two_applications_are_in_separate_files(clients: WorkerClients, tmp_path: Path) -> None:
    """Each application counts its partitions and attempts anew."""
    careful = plan(onRowError="deadletter", badRecordsPath=tmp_path)
    reports = []
    for name in ("first", "second"):
        rows = pa.record_batch({"body": pa.array([None], pa.string()), "which": [name]})
        reports.append(run_task(careful, iter([rows]), PLACE).report)
    assert [report.row_errors for report in reports] == [1, 1]
    kept = [json.loads(Path(report.bad_records or "").read_text())["record"]["which"] for report in reports]
    assert kept == ["first", "second"]
    assert len(list(tmp_path.iterdir())) == 2


def test_invalid_and_rejected_rows_are_lines_of_the_bad_records(clients: WorkerClients, tmp_path: Path) -> None:
    """The one are found by the worker's thread while the other come back to the thread of the clients."""
    large, empty = 40, 1000

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"body": ["y" * 270_000] * large, "numbers": [[1]] * large})
        for _ in range(empty // 100):
            yield pa.record_batch({"body": pa.array([None] * 100, pa.string()), "numbers": [list(range(100))] * 100})

    careful = plan(ids="content", onRowError="deadletter", badRecordsPath=tmp_path, maxBatchMessages=10)
    report = run_task(careful, rows(), PLACE).report
    lines = Path(report.bad_records or "").read_text().splitlines()
    assert report.row_errors == len(lines) == large + empty
    assert {json.loads(line)["row"] for line in lines} == set(range(report.rows))


def test_a_dry_run_sends_nothing(clients: WorkerClients) -> None:
    assert run_task(plan(dryRun="schema"), batches(100), PLACE).report.rows == 0
    assert run_task(plan(dryRun="sample"), batches(5000), PLACE).report.rows == 700
    report = run_task(plan(dryRun="encode"), batches(5000), PLACE).report
    assert (report.rows, report.sent) == (5000, 0)
    assert report.bytes > 5000
    with pytest.raises(InvalidOperationError):
        run_task(plan(dryRun="encode"), iter([pa.record_batch({"body": pa.array([None], pa.string())})]), PLACE)
    assert stored(clients) == []


def test_a_secondary_that_is_down_does_not_stop_a_job_whose_primary_works(clients: WorkerClients) -> None:
    backup = memory_host("written-backup")
    backup.inject(Fault(FaultKind.DOWN))
    report = run_task(plan(), batches(10), PLACE).report
    assert (report.sent, report.is_unpaired) == (10, True)
    with pytest.raises(Exception, match="written-backup"):
        run_task(plan(ordering="session"), batches(10), PLACE)
    backup.heal()
    assert run_task(plan(), batches(20), PLACE).report.is_unpaired is False


def test_a_secret_that_the_worker_does_not_have_fails_the_task(clients: WorkerClients) -> None:
    given = write_options({"connectionStringEnv": "NOT_SET_ANYWHERE", "queue": "orders"})
    with pytest.raises(ServiceBusAuthenticationError):
        run_task(WritePlan(options=given, rows=plan().rows, mixes_keys=True), batches(1), PLACE)


def test_an_idle_client_is_closed_and_the_next_task_opens_another(clients: WorkerClients) -> None:
    idle = plan(idleTimeout="50 ms")
    assert run_task(idle, batches(10), PLACE).report.connect_ms > 0
    clients.run(clock.sleep(0.3))
    assert run_task(idle, batches(10), PLACE).report.connect_ms > 0


def test_sessions_of_two_tasks_must_differ(clients: WorkerClients) -> None:
    def rows(sessions: list[str]) -> Iterator[pa.RecordBatch]:
        return iter([pa.record_batch({"body": sessions, "session": sessions})])

    ordered = plan(session=1, ordering="session")
    first = run_task(ordered, rows(["a", "b", "a"]), PLACE)
    second = run_task(ordered, rows(["c"]), TaskPlace(3, 0, 11, "query", 4))
    assert (len(first.sessions), len(second.sessions)) == (2 * DIGEST_BYTES, DIGEST_BYTES)
    check_sessions([first, second])
    with pytest.raises(InvalidOperationError, match="at least 2, were in several tasks"):
        check_sessions([first, second, TaskResult(TaskReport(), first.sessions)])


def test_a_session_is_that_of_its_entity_in_every_spelling() -> None:
    digests = []
    for path in ("orders", "Orders", "ORDERS", "orders2"):
        digests.append(SessionDigests())
        digests[-1].add(path, ["s", "s", "S", " s"])
    packed = [each.packed() for each in digests]
    for first, second in combinations(packed, 2):
        assert split_sessions([first, second]) == (0 if packed[3] in (first, second) else 3)


def test_a_task_with_many_sessions_reports_a_sample_that_is_comparable() -> None:
    def digests(numbers: range) -> bytes:
        found = SessionDigests(kept=100)
        for start in range(numbers.start, numbers.stop, 250):
            found.add("orders", map(str, range(start, start + 250)))
        return found.packed()

    first, same, other = digests(range(5000)), digests(range(5000)), digests(range(5000, 10_000))
    assert len(first) == 100 * DIGEST_BYTES
    assert split_sessions([first, same, other]) == 100
    assert split_sessions([first, other, b""]) == split_sessions([]) == 0


def test_a_plan_shows_no_secret(tmp_path: Path) -> None:
    given = plan(connectionString="Endpoint=sb://contoso.net;SharedAccessKeyName=k;SharedAccessKey=s3cret")
    assert "s3cret" not in repr(given)


def test_a_worker_does_not_load_the_broker() -> None:
    """It would take a third longer to begin, and Spark begins workers anew after a failure or a minute without work."""
    found = "[name for name in sys.modules if name.startswith('sbclient.broker')]"
    assert output_of(f"import sys, sbclient_spark.source as _; print({found})") == "[]"


def test_two_concurrent_attempts_of_a_task_leave_one_set_of_messages(clients: WorkerClients) -> None:
    """Speculation: Spark stops neither of them from sending."""
    attempts = [TaskPlace(2, attempt, 20 + attempt, "query", 4) for attempt in range(2)]
    with ThreadPoolExecutor() as side_by_side:
        results = list(side_by_side.map(lambda place: run_task(plan(), batches(3000), place), attempts))
    assert [result.report.sent for result in results] == [3000, 3000]
    assert sorted(stored(clients)) == list(range(3000))
