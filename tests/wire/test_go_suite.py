from __future__ import annotations

from tests.wire.go_suite import MODULE, judge

KNOWN = {"admin/TestKnown": "because"}


def event(action: str, test: str = "", package: str = "/admin") -> dict[str, str]:
    return {"Action": action, "Package": MODULE + package} | ({"Test": test} if test else {})


def test_a_listed_failure_is_as_known() -> None:
    events = [event("pass", "TestA"), event("fail", "TestKnown/part"), event("fail", "TestKnown"), event("fail")]
    assert judge(events, KNOWN) == (["failed: admin/TestKnown: because", "1 passed, 2 failed, 0 skipped"], True)


def test_an_unlisted_failure_or_a_listed_success_is_not_as_known() -> None:
    for events in ([event("fail", "TestA")], [event("pass", "TestKnown")], [event("fail", package="")], []):
        assert not judge(events, KNOWN)[1]
