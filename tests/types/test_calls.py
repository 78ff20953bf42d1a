"""pyright accepts the right calls of `calls.py` and reports the wrong ones. mypy checks the file, too."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]


@pytest.mark.slow
def test_pyright_agrees_with_the_comments() -> None:
    pytest.importorskip("pyright")
    if shutil.which("node") is None:
        pytest.skip("pyright needs Node.js")
    environment = os.environ | {"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}  # it asks the network for a later version
    checked = subprocess.run(
        [sys.executable, "-m", "pyright", "--pythonpath", sys.executable],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
