"""Metadata of the distribution that depends on where its repository is published: URLs, and links of the README.

`REPOSITORY_URL` in the environment of a build names the place, such as `https://github.com/contoso/sbclient`. Without
it the metadata has no URLs, and links to other files stay relative. CONTRIBUTING.md says how to release.
"""

from __future__ import annotations

import os
import re
import runpy
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)(\[[^\]]*\])\((?!https?:|#)([^)]+)\)")


class CustomMetadataHook(MetadataHookInterface):
    """Sets `readme` and `urls`."""

    def update(self, metadata: dict[str, Any]) -> None:
        root = Path(self.root)
        text = (root / "README.md").read_text(encoding="utf-8")
        repository = os.environ.get("REPOSITORY_URL", "").rstrip("/")
        if repository:
            tag = f"v{runpy.run_path(str(root / 'sbclient' / 'version.py'))['VERSION']}"
            text = with_absolute_links(text, repository, tag)
            metadata["urls"] = {
                "Repository": repository,
                "Documentation": f"{repository}/blob/{tag}/README.md#documentation",
                "Changelog": f"{repository}/blob/{tag}/CHANGELOG.md",
                "Issues": f"{repository}/issues",
            }
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def with_absolute_links(text: str, repository: str, tag: str) -> str:
    """Return Markdown whose links to files lead to the repository: pictures to the file, others to its page."""

    def absolute(match: re.Match[str]) -> str:
        is_picture, words, path = match.groups()
        return f"{is_picture}{words}({repository}/{'raw' if is_picture else 'blob'}/{tag}/{path})"

    return LINK.sub(absolute, text)
