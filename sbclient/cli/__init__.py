"""The command line: `sbclient demo`, `sbclient emulator`, `sbclient syphon` and the smaller tools."""

from __future__ import annotations

import gc
import os
import sys

from sbclient.cli import startup_signals
from sbclient.version import VERSION

COLLECT_AFTER = 50_000
"""Allocations between two cycle collections; Python's default is 700. Messages and modules have few cycles, and
collections took a third of the time of a full emulator."""


def collect_less() -> None:
    """Make cycle collections of this process rarer."""
    gc.set_threshold(COLLECT_AFTER, *gc.get_threshold()[1:])


def main() -> None:
    """Run the command line."""
    startup_signals.hold()
    collect_less()
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        print(VERSION)  # without typer and the commands, which take a second to import
        return
    try:
        from sbclient.cli.app import make_app, run_with_json_errors
    except ModuleNotFoundError as error:
        if error.name != "typer":
            raise
        sys.exit(
            "sbclient: the command line requires the package typer: install the extra `cli`, in a checkout of this "
            "package with python -m pip install '.[cli]'"
        )
    app = make_app(arguments or _words_to_complete())
    if "--json" in arguments:
        sys.exit(run_with_json_errors(app, arguments))
    app(prog_name="sbclient")


def _words_to_complete() -> list[str]:
    """Return the words after the program that a shell asks to complete: bash has its own variable for them."""
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
    return line.split()[1:] if "_SBCLIENT_COMPLETE" in os.environ else []
