"""The command line: `sbclient demo`, `sbclient emulator`, `sbclient syphon` and the smaller tools."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    try:
        from sbclient.cli.app import make_app

        make_app(sys.argv[1:])(prog_name="sbclient")
    except KeyboardInterrupt:  # while the command itself was still being imported
        print("sbclient: interrupted", file=sys.stderr)
        sys.exit(130)
