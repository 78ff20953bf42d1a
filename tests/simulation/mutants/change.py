"""Changes of the syntax tree of one function, which plant bugs that do not depend on lines or their format."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent, indent
from typing import Any, Final, TypeAlias

PACKAGE: Final = "sbclient"
SPARK: Final = "sbclient_spark"
IGNORED: Final = {"ctx", "kind", "type_comment", "type_ignores"}
SNIPPET_LINES: Final = 12


class Misfit(Exception):
    """A change that does not fit the code."""


@dataclass(frozen=True, slots=True)
class Change:
    """Replaces what a snippet matches in one function.

    `...` in `old` matches any expression or, as the only statement of a block, any statements. `**...` matches all
    other keyword arguments of a call. The first `...` of `new` stands for what the first one of `old` matched, and
    so on.

    Attributes:
        place: the module below `sbclient` and the qualified name of a function or a class in it, as in
            `client.sender:Sender.send`; only the module, for a statement outside of functions. Modules of
            `sbclient_spark` begin with that name.
        old: an expression, or statements that follow one another; matches exactly once in the place.
        new: an expression or statements; empty to delete.
    """

    place: str
    old: str
    new: str

    @property
    def path(self) -> Path:
        """The path of the module, relative to the package."""
        parts = self.place.partition(":")[0].split(".")
        return Path(*([".."] if parts[0] == SPARK else []), *parts).with_suffix(".py")

    def apply(self, tree: ast.Module) -> None:
        """Change the syntax tree of the module.

        Raises:
            Misfit: the place does not exist, the snippet does not match exactly once in it, or nothing changes.
        """
        name = self.place.partition(":")[2]
        places = [node for found, node in _named(tree) if found == name] if name else [tree]
        if not places:
            raise Misfit(f"{PACKAGE}/{self.path} has no function or class '{name}'{_similar(tree, name)}")
        old, new = _parsed(self.old), _parsed(self.new)
        is_expression = all(len(part) == 1 and isinstance(part[0], ast.Expr) for part in (old, new))
        matches = [match for place in places for match in _matches(old, place, is_expression=is_expression)]
        if len(matches) != 1:
            snippet = "\n".join(self.old.strip("\n").splitlines()[:SNIPPET_LINES])
            raise Misfit(
                f"this occurs {len(matches)} times in {self.place}, where it must occur once:\n"
                f"{indent(dedent(snippet), '        ')}{_nearest(places, self.old) if not matches else ''}"
            )
        put, captured = matches[0]
        before = [ast.dump(place) for place in places]
        put(_filled(new, captured))
        if before == [ast.dump(place) for place in places]:
            raise Misfit(f"the change of {self.place} changes nothing")


@dataclass(frozen=True, slots=True)
class Mutant:
    """One planted bug."""

    name: str
    group: str
    changes: tuple[Change, ...]


def mutants_of(bugs: Mapping[str, Mapping[str, Change | tuple[Change, ...]]]) -> tuple[Mutant, ...]:
    """Return the planted bugs of a table: for each group, the names of its bugs with what each changes."""
    return tuple(
        Mutant(name, group, changes if isinstance(changes, tuple) else (changes,))
        for group, rows in bugs.items()
        for name, changes in rows.items()
    )


def apply(mutant: Mutant, package: Path) -> dict[Path, str]:
    """Return the changed source of each module that a bug changes, by its path relative to the package.

    Raises:
        Misfit: a change does not fit the code.
    """
    trees: dict[Path, ast.Module] = {}
    for change in mutant.changes:
        try:
            if change.path not in trees:
                trees[change.path] = ast.parse((package / change.path).read_text())
            change.apply(trees[change.path])
        except (Misfit, FileNotFoundError, SyntaxError) as error:
            raise Misfit(f"{mutant.name}: {error}") from error
    return {path: ast.unparse(ast.fix_missing_locations(tree)) for path, tree in trees.items()}


def _parsed(snippet: str) -> list[ast.stmt]:
    return ast.parse(dedent(snippet).strip()).body


def _named(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """All functions and classes with their qualified names."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield prefix + node.name, node
            yield from _named(node, f"{prefix}{node.name}.")
        else:
            yield from _named(node, prefix)


_Put: TypeAlias = Callable[[list[ast.stmt]], None]


def _matches(old: Sequence[ast.stmt], place: ast.AST, *, is_expression: bool) -> Iterator[tuple[_Put, list[Any]]]:
    """For each match, a function that replaces it and what its `...` matched."""
    for node in ast.walk(place):
        for field, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt) and not is_expression:
                for start in range(len(value) - len(old) + 1):
                    captured: list[Any] = []
                    if all(_fits(one, value[start + at], captured) for at, one in enumerate(old)):
                        yield _block_setter(node, field, start, len(old)), captured
            elif is_expression:
                assert isinstance(old[0], ast.Expr)
                for at, child in enumerate(value if isinstance(value, list) else [value]):
                    captured = []
                    if isinstance(child, ast.expr) and _fits(old[0].value, child, captured):
                        yield _expression_setter(node, field, at if isinstance(value, list) else None), captured


def _block_setter(node: ast.AST, field: str, start: int, count: int) -> _Put:
    def put(new: list[ast.stmt]) -> None:
        block = getattr(node, field)
        block[start : start + count] = new
        if not block and field != "orelse" and field != "finalbody":
            block.append(ast.Pass())

    return put


def _expression_setter(node: ast.AST, field: str, at: int | None) -> _Put:
    def put(new: list[ast.stmt]) -> None:
        assert isinstance(new[0], ast.Expr)
        if at is None:
            setattr(node, field, new[0].value)
        else:
            getattr(node, field)[at] = new[0].value

    return put


def _is_any(node: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is Ellipsis


def _is_any_block(nodes: object) -> bool:
    return isinstance(nodes, list) and len(nodes) == 1 and isinstance(nodes[0], ast.Expr) and _is_any(nodes[0].value)


def _is_rest(node: object) -> bool:
    return isinstance(node, ast.keyword) and node.arg is None and _is_any(node.value)


def _fits(pattern: Any, node: Any, captured: list[Any]) -> bool:
    if _is_any_block(pattern) or (_is_any(pattern) and isinstance(node, ast.expr)):
        captured.append(node)
        return isinstance(node, ast.AST) or bool(node)
    if isinstance(pattern, list):
        if not isinstance(node, list):
            return False
        if any(map(_is_rest, pattern)):
            return _fits_keywords(pattern, node, captured)
        return len(pattern) == len(node) and all(
            _fits(one, other, captured) for one, other in zip(pattern, node, strict=True)
        )
    if isinstance(pattern, ast.AST):
        return type(pattern) is type(node) and all(
            _fits(getattr(pattern, field, None), getattr(node, field, None), captured)
            for field in pattern._fields
            if field not in IGNORED
        )
    return type(pattern) is type(node) and bool(pattern == node)


def _fits_keywords(pattern: list[ast.keyword], node: list[ast.keyword], captured: list[Any]) -> bool:
    wanted = {one.arg: one for one in pattern if not _is_rest(one)}
    found = {one.arg: one for one in node if one.arg in wanted}
    for one in pattern:
        if _is_rest(one):
            captured.append([other for other in node if other.arg not in wanted])
        elif one.arg not in found or not _fits(one.value, found[one.arg].value, captured):
            return False
    return True


def _filled(new: list[ast.stmt], captured: list[Any]) -> list[ast.stmt]:
    """The new statements with what was matched in the place of each `...`."""
    rest = iter(captured)

    def fill(value: Any) -> Any:
        if _is_any(value) or _is_rest(value) or (isinstance(value, ast.Expr) and _is_any(value.value)):
            return deepcopy(next(rest))
        if isinstance(value, list):
            filled = [fill(each) for each in value]
            return [one for each in filled for one in (each if isinstance(each, list) else [each])]
        if isinstance(value, ast.AST):
            for field, child in ast.iter_fields(value):
                setattr(value, field, fill(child))
        return value

    try:
        return [fill(statement) for statement in new]
    except StopIteration:
        raise Misfit("the new code has more '...' than the old") from None


def _similar(tree: ast.AST, name: str) -> str:
    """Where a function of that name, or of a similar one, is."""
    names = [found for found, _ in _named(tree)]
    last = name.rpartition(".")[2]
    near = [found for found in names if found.rpartition(".")[2] == last] or difflib.get_close_matches(name, names)
    return f"; similar: {', '.join(near)}" if near else ""


def _nearest(places: Sequence[ast.AST], snippet: str) -> str:
    """The lines of the places that are most like the snippet."""
    lines = [line.strip() for place in places for line in ast.unparse(place).splitlines()]
    wanted = [line.strip() for line in snippet.strip().splitlines()]
    near = list(dict.fromkeys(one for line in wanted for one in difflib.get_close_matches(line, lines, 2)))
    return "\n    similar lines there:\n" + indent("\n".join(near[:SNIPPET_LINES]), "        ") if near else ""
