"""A Celery application. `python celery_tasks.py COUNT` sends tasks of three kinds; `celery worker` executes them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from celery import Celery
from done import note

app = Celery("proof", broker=os.environ["BROKER"])
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"peek_lock_seconds": 10, "wait_time_seconds": 1, "retry_total": 1},
)


@app.task(name="work")
def work(number: int) -> None:
    """Succeed at once."""
    note(number)


@app.task(name="unreliable", bind=True, max_retries=20)
def unreliable(self: Any, number: int) -> None:
    """Fail in the first attempt, and ask for another one in a second."""
    if not self.request.retries:
        raise self.retry(countdown=1)
    note(number)


def send(task: Callable[..., Any], number: int, **options: Any) -> None:
    """Send a task until the broker has accepted it."""
    while True:
        try:
            task.apply_async((number,), task_id=f"task-{number}", **options)  # type: ignore[attr-defined]
        except Exception as error:
            sys.stderr.write(f"{number}: {error!r}\n")
        else:
            break


if __name__ == "__main__":
    for each in range(int(sys.argv[1])):
        if each % 10 == 8:
            send(work, each, countdown=3)
        else:
            send(unreliable if each % 10 == 9 else work, each)
        sys.stdout.write(f"{each}\n")
        sys.stdout.flush()
