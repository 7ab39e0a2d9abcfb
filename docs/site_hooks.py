"""Hooks of the site: what a page links to outside `docs/` is on no page of the site, and is named there instead."""

from __future__ import annotations

import posixpath
import re
from typing import Any

_LINK = re.compile(r"\[([^\]]+)\]\((\.\./[^)\s#]+)(?:#[^)\s]*)?\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace links that leave the folder of the pages by their text and the path in the repository."""

    def named(link: re.Match[str]) -> str:
        text, target = link.groups()
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page.file.src_uri), target))
        if path.startswith("docs/"):
            return link.group(0)
        return text if path in text or "`" in text else f"{text} (`{path}`)"

    return _LINK.sub(named, markdown)
