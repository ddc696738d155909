"""A hook of MkDocs: the site holds docs/ alone, so a link to another file of the repository becomes its path."""

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+[^)#\s]+)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Replace links that leave docs/.

    Raises:
        FileNotFoundError: there is no such file in the repository.
    """
    here = Path(page.file.abs_src_path).parent

    def written(link: re.Match[str]) -> str:
        target = (here / link[2]).resolve()
        if not target.exists():
            raise FileNotFoundError(f"{page.file.src_uri}: {link[2]} is no file of the repository")
        if target.is_relative_to(ROOT / "docs"):
            return link[0]
        return f"`{target.relative_to(ROOT).as_posix()}`"

    return _LINK.sub(written, markdown)
