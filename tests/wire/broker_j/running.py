"""A broker in a process of its own; `python -m tests.wire.broker_j.running` fetches it."""

from __future__ import annotations

import json
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.wire.maven import check_installed, jars_of

HERE: Final = Path(__file__).parent
START_S: Final = 60.0

_QUEUE_PER_ADDRESS: Final = {
    "pattern": ".*",
    "createdOnPublish": True,
    "createdOnConsume": True,
    "nodeType": "queue",
    "attributes": {},
}


def installed(*, may_fetch: bool) -> Path:
    """Return the folder with the jars of the broker; raises as `maven.jars_of`."""
    check_installed("java", "mvn")
    return jars_of(HERE / "pom.xml", proof="brokers", may_fetch=may_fetch)


@contextmanager
def running(jars: Path) -> Iterator[int]:
    """Run a broker without authentication, which creates a queue for each address; yield its port on 127.0.0.1."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(_configuration(port)))
        command = ["java", f"-Dlogback.configurationFile={HERE}/logback.xml", f"-Dqpid.work_dir={folder}"]
        command += ["-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*", str(HERE / "Broker.java"), str(path)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        guard = threading.Timer(START_S, process.kill)
        guard.start()
        try:
            if not any(line == "ready\n" for line in process.stdout):
                raise RuntimeError(f"the broker did not start within {START_S:g} s, or ended with an error")
            yield port
        finally:
            guard.cancel()
            process.kill()
            process.communicate()


def _configuration(port: int) -> dict[str, object]:
    host = {"type": "Memory", "nodeAutoCreationPolicies": [_QUEUE_PER_ADDRESS]}
    return {
        "name": "broker",
        "modelVersion": "9.1",
        "authenticationproviders": [{"name": "anyone", "type": "Anonymous"}],
        "ports": [
            {
                "name": "amqp",
                "type": "AMQP",
                "port": str(port),
                "bindingAddress": "127.0.0.1",
                "authenticationProvider": "anyone",
                "protocols": ["AMQP_1_0"],
                "virtualhostaliases": [{"name": name, "type": name} for name in ("defaultAlias", "hostnameAlias")],
            }
        ],
        "virtualhostnodes": [
            {
                "name": "default",
                "type": "Memory",
                "defaultVirtualHostNode": "true",
                "virtualHostInitialConfiguration": json.dumps(host),
            }
        ],
    }


if __name__ == "__main__":
    installed(may_fetch=True)
