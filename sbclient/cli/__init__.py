"""The command line: `sbclient demo`, `sbclient emulator`, `sbclient syphon` and the smaller tools."""

from __future__ import annotations


def main() -> None:
    """Run the command line; what a command needs is imported only when it runs."""
    from sbclient.cli.app import app

    app(prog_name="sbclient")
