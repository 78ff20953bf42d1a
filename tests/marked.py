"""Finds the tests with a marker, without importing them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).parent


def arguments_of_markers(name: str) -> Iterator[tuple[Path, str]]:
    """Yield each argument of the markers of tests and of rows of their tables, with the file of the test."""
    for path in sorted(TESTS.rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if f"mark.{name}(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            markers: list[ast.expr] = []
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                markers = node.decorator_list if node.name.lower().startswith("test") else []
            elif isinstance(node, ast.keyword) and node.arg == "marks":
                markers = [node.value]
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
                markers = node.value.elts if isinstance(node.value, ast.List) else [node.value]
            for marker in markers:
                if isinstance(marker, ast.Call) and ast.unparse(marker.func) == f"pytest.mark.{name}":
                    yield from ((path, ast.literal_eval(each)) for each in marker.args)
