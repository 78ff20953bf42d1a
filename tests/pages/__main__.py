"""The command line: `python -m tests.pages`. tests/test_docs.py fails if a part is out of date."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from sbclient.cli import deviations
from tests.pages import constants, members, reference, worker_file
from tests.pages.every import TABLES
from tests.pages.table import DOCS


def main() -> None:
    """Write every generated part, except for those that need a package that is not installed.

    Print the texts that a new option, setting, request or reason may make incomplete, and those that have the former
    value of a constant.
    """
    sys.stdout.writelines(f"{line}\n" for line in (*members.additions(), *constants.stale()))
    members.PATH.write_text(members.text(), encoding="utf-8")
    reference.PAGE.write_text(reference.page(), encoding="utf-8")
    (DOCS / "deviations.md").write_text(deviations.page(), encoding="utf-8")
    worker_file.PATH.write_text(worker_file.text(), encoding="utf-8")
    constants.PATH.write_text(constants.text(), encoding="utf-8")
    for table in TABLES:
        if find_spec(table.needs) is None:
            sys.stderr.write(f"{table.name} is left as it is: {table.needs} is not installed\n")
        else:
            (DOCS / table.page).write_text(table.page_text(), encoding="utf-8")


if __name__ == "__main__":
    main()
