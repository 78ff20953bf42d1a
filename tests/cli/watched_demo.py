"""`sbclient demo --page` in a process of its own, for tests that look at its page."""

from __future__ import annotations

import re
import signal

from tests.commands import start


class Demo:
    """The demo in a process of its own.

    Attributes:
        url: where its page is.
    """

    def __init__(self, *arguments: str) -> None:
        self._process = start("demo", "--page", *arguments)
        assert self._process.stdout is not None
        found = None
        while found is None and (line := self._process.stdout.readline()):
            found = re.search(r"http://localhost:\d+/", line)
        assert found is not None, self._process.communicate()[1]
        self.url = found[0]

    def interrupt(self) -> tuple[int, str]:
        """Ctrl-C; returns the exit status, and what was said after the address."""
        self._process.send_signal(signal.SIGINT)
        out, err = self._process.communicate()
        return self._process.returncode, out + err

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()
