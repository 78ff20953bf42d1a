"""The file of settings that examples/deploy shows, generated from the settings of the worker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap
from typing import Any, Final

from sbclient.settings.table import Setting
from sbclient.worker.settings import SETTINGS

PATH: Final = Path(__file__).parents[2] / "examples" / "deploy" / "syphon.toml"
WIDTH: Final = 118

HEAD: Final = """\
# Settings of `sbclient syphon --config syphon.toml`. Try them with
# `sbclient syphon --check-config --config syphon.toml`.
#
# A line that begins with `# name =` shows the default or, where there is none, an example. An option or an environment
# variable goes before what stands here; docs/syphon.md lists all three names of each.
#
# The connection strings do not belong here. Set SERVICEBUS_CONNECTION_STRING and
# SERVICEBUS_SECONDARY_CONNECTION_STRING, or name files that hold nothing else.
"""

SET: Final = {"http_port"}
EXAMPLES: Final[dict[str, Any]] = {
    "primary_file": "primary.secret",
    "secondary_file": "secondary.secret",
    "primary_name": "contoso",
    "queue": [0, 1, 2],
    "destination": ["orders", "eu/*"],
    "redirect_after": "10 min",
    "max_messages_per_second": 500,
    "max_messages_per_second_per_destination": 100,
    "max_queues_polled": 10,
    "until": "empty",
    "start_timeout": "60 s",
    "http_port": 9464,
    "probe_entity": "orders",
}
"""Values of the settings without a default."""
NOTES: Final = {
    "shutdown_timeout": "The service manager has to wait longer, see TimeoutStopSec and terminationGracePeriodSeconds."
}


def text() -> str:
    """Return the file."""
    return HEAD + "".join(_lines())


def _lines() -> Iterator[str]:
    group = ""
    for setting in SETTINGS.values():
        if setting.is_secret:
            continue
        if setting.group != group:
            group = setting.group
            heading = f"# -- {group} "
            yield f"\n{heading:-<{WIDTH + 2}}\n"
        about = f"{setting.about} {NOTES.get(setting.name, '')}".rstrip()
        yield "\n" + "".join(f"# {line}\n" for line in wrap(about, WIDTH, break_on_hyphens=False))
        yield f"{'' if setting.name in SET else '# '}{setting.name} = {_value(setting)}\n"


def _value(setting: Setting) -> str:
    if setting.default is None:
        assert setting.name in EXAMPLES, f"add an example of {setting.name} to EXAMPLES of {__name__}"
        return json.dumps(EXAMPLES[setting.name])
    shown = setting.shown(setting.default)
    is_literal = isinstance(setting.default, bool) or shown.isdecimal()
    return shown if is_literal else json.dumps(shown)
