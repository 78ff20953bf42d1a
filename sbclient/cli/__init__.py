"""The command line: `sbclient demo`, `sbclient emulator`, `sbclient syphon` and the smaller tools."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Run the command line."""
    if sys.argv[1:2] == ["syphon"]:
        # A worker that is told to end while it is still being imported has nothing in hand: it ends in order.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: sys.exit(0))
    try:
        arguments = sys.argv[1:]
        if "--json" in arguments:
            from sbclient.cli.app import run_telling_json

            sys.exit(run_telling_json(arguments))
        from sbclient.cli.app import make_app

        make_app(arguments)(prog_name="sbclient")
    except KeyboardInterrupt:  # while the command itself was still being imported
        print("sbclient: interrupted", file=sys.stderr)
        sys.exit(130)
