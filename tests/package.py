"""Builds the distributions as a release does, and checks them: `python -m tests.package`, with build and twine.

The metadata has the URLs of the repository. The README, rendered as a package index renders it, links only to files
that the repository has. The wheel, installed alone, starts.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from email.parser import Parser
from html.parser import HTMLParser
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from readme_renderer import markdown

ROOT: Final = Path(__file__).parents[1]
REPOSITORY: Final = "https://example.com/contoso/sbclient"


class _Targets(HTMLParser):
    """Collects what a page links to and shows."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.pictures: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "a":
            self.links.append(values.get("href") or "")
        elif tag == "img":
            self.pictures.append(values.get("src") or "")


def run(*command: str | Path, **variables: str) -> str:
    """Run a command that must succeed; return what it prints."""
    ended = subprocess.run(
        command, cwd=ROOT, env=os.environ | variables, capture_output=True, encoding="utf-8", check=False
    )
    if ended.returncode:
        sys.exit(f"{' '.join(map(str, command))} ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}")
    return ended.stdout


def file_of(target: str, kind: str, version: str) -> Path:
    """Return the file that a link of the built README leads to."""
    start = f"{REPOSITORY}/{kind}/v{version}/"
    assert target.startswith(start), f"a package index cannot follow {target}"
    return ROOT / target.removeprefix(start).partition("#")[0]


def check_description(description: str, version: str) -> None:
    """Check that each link and picture of the rendered README leads to a file of the repository."""
    page = markdown.render(description)
    assert page, "the README cannot be rendered"
    targets = _Targets()
    targets.feed(page)
    links = [target for target in targets.links if not target.startswith("#")]  # of the headings, to themselves
    inner = [file_of(target, "blob", version) for target in links]
    inner += [file_of(target, "raw", version) for target in targets.pictures]
    assert targets.pictures
    assert len(links) > 20
    assert [path for path in inner if not path.exists()] == []
    print(f"README: {len(links)} links and {len(targets.pictures)} pictures lead to files of the repository")


def check_installed(wheel: Path, version: str, folder: Path) -> None:
    """Check that the wheel works alone, without an extra and without the checkout."""
    venv.create(folder / "installed", with_pip=True)
    python = folder / "installed" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    run(python, "-m", "pip", "install", "--quiet", wheel)
    shown = "import sbclient; print(sbclient.__version__, sbclient.__file__, sbclient.ServiceBusClient)"
    answer = run(python, "-P", "-W", "error", "-c", shown)
    assert answer.startswith(f"{version} {folder}"), answer
    assert run(python, "-P", "-W", "error", "-m", "sbclient", "--version") == f"{version}\n"
    print(f"installed alone: {answer}", end="")


def main() -> None:
    """Build and check."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        run(sys.executable, "-m", "build", "--outdir", folder / "dist", REPOSITORY_URL=REPOSITORY)
        (wheel,) = (folder / "dist").glob("*.whl")
        (source,) = (folder / "dist").glob("*.tar.gz")
        print(run(sys.executable, "-m", "twine", "check", "--strict", wheel, source), end="")
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            (path,) = (each for each in names if each.endswith("/METADATA"))
            metadata = Parser().parsestr(archive.read(path).decode())
        urls = dict(each.split(", ") for each in metadata.get_all("Project-URL", []))
        assert set(urls) == {"Repository", "Documentation", "Changelog", "Issues"}, urls
        for about in ("Documentation", "Changelog"):
            assert file_of(urls[about], "blob", metadata["Version"]).is_file(), urls[about]
        assert {each.partition("/")[0] for each in names} == {"sbclient", "sbclient_spark", path.partition("/")[0]}
        for package in ("sbclient", "sbclient_spark"):
            assert f"{package}/py.typed" in names
        files = (each.relative_to(ROOT) for each in (ROOT / "sbclient" / "emulator" / "page").rglob("*.*"))
        assert {each.as_posix() for each in files if "__pycache__" not in each.parts} <= set(names)
        licenses = {each.rpartition("/")[2] for each in metadata.get_all("License-File", [])}
        assert licenses == {"LICENSE", "preact.txt", "htm.txt"}, licenses
        with tarfile.open(source) as archive:
            assert any(each.endswith("/tests/package.py") for each in archive.getnames())
        check_description(str(metadata.get_payload()), metadata["Version"])
        check_installed(wheel, metadata["Version"], folder)


if __name__ == "__main__":
    main()
