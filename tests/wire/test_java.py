"""azure-messaging-servicebus, the Java client, where it is in the local Maven repository.

`.ci/proofs java` fetches the client and runs all checks; here is one run of some.
"""

from __future__ import annotations

import pytest

from tests.stage.serving import ServingThread
from tests.wire import java_client
from tests.wire.maven import NotInstalledError
from tests.wire.programs import check_lines

CHECKS = ("messages", "two-entities")


def test_java_client_moves_a_message_in_a_transaction_over_tls(thread: ServingThread) -> None:
    try:
        folder = java_client.installed(may_fetch=False)
    except NotInstalledError as error:
        pytest.skip(str(error))
    check_lines(java_client.run(folder, "tls", thread, CHECKS), CHECKS)
