"""MkDocs hook: links from docs/ to files outside of it become the files' paths, since the site has no page for them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"\[([^\]]*)\]\(((?:\.\./)+[^)\s#]+)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by MkDocs with the text of each page."""
    folder = (_ROOT / "docs" / page.file.src_uri).parent

    def absolute(link: re.Match[str]) -> str:
        target = (folder / link[2]).resolve()
        if target.is_relative_to(_ROOT / "docs") or not target.exists():
            return link[0]
        path = target.relative_to(_ROOT).as_posix()
        return f"`{path}`" if link[1].strip("`") in path else f"{link[1]} (`{path}`)"

    return _LINK.sub(absolute, markdown)
