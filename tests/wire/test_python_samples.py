"""The runner of the samples of azure-servicebus, with samples of its own; `.ci/proofs samples` runs the real ones."""

from __future__ import annotations

from pathlib import Path

from tests.wire.python_samples import run_samples

PROGRAMS = {
    "send_queue": """
import json, os, urllib.request
request = urllib.request.Request(os.environ["IDENTITY_ENDPOINT"], headers={"X-IDENTITY-HEADER": "secret"})
assert json.load(urllib.request.urlopen(request))["access_token"].count(".") == 2
import certifi
assert os.environ["PYTHONPATH"].startswith(certifi.where().split("/certifi")[0])
assert os.environ["SERVICEBUS_FULLY_QUALIFIED_NAMESPACE"] in os.environ["SERVICEBUS_CONNECTION_STR"]
assert os.environ["SERVICEBUS_QUEUE_NAME"] == "sync_samples-send_queue"
""",
    "mgmt_topic_async": "raise ValueError('no such topic')",
    "receive_peek": "print('nothing')",
    "client_identity_authentication_async": "raise SystemExit(1)",
}


async def test_samples_run_with_the_environment_and_fail_for_a_stated_reason(tmp_path: Path) -> None:
    (tmp_path / "sync_samples").mkdir()
    for name, text in PROGRAMS.items():
        (tmp_path / "sync_samples" / f"{name}.py").write_text(text)
    results = await run_samples(tmp_path, tmp_path, port=0, proxy_port=0)
    assert [(each.name.split("/")[1], each.outcome, each.reason) for each in results] == [
        ("client_identity_authentication_async", "not run", "needs a service principal of Microsoft Entra ID"),
        ("mgmt_topic_async", "failed", "ValueError: no such topic"),
        ("receive_peek", "failed", "did not print 'seeded': 'nothing\\n'"),
        ("send_queue", "ok", ""),
    ]
