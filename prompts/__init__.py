"""One template file per role, rendered by one function. Only wording lives here: no model, no engine.

A template has the blocks `system` and `user`; `policy.j2` also has `assistant`, which writes a past action. Each block
becomes the content of one chat message. An environment or the configuration may replace a template by another file.
Every generated row records the template's digest.
"""

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import FileSystemLoader, StrictUndefined, Template, TemplateError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

_FOLDER = Path(__file__).parent
_PARTS = {"conversation"}  # included by templates
_SHIPPED = {path.stem: path for path in sorted(_FOLDER.glob("*.j2")) if path.stem not in _PARTS}
NAMES = tuple(_SHIPPED)
_JINJA = ImmutableSandboxedEnvironment(  # a configuration, which may come from somebody else, names templates
    loader=FileSystemLoader(_FOLDER),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    autoescape=False,
)


class PromptError(Exception):
    """A template is missing or broken, or lacks a variable that it uses."""


@lru_cache(maxsize=64)
def _load(path: Path) -> tuple[str, Template, str]:
    """A file's text with its included parts at the end, its compiled template, and its digest."""
    try:
        text = path.read_text(encoding="utf-8")
        template = _JINJA.from_string(text)
        template.globals = dict(template.globals)  # Jinja copies them at every prompt; its chain is slow
        parts = sorted(filter(None, meta.find_referenced_templates(_JINJA.parse(text))))
        whole = text + "".join((_FOLDER / part).read_text(encoding="utf-8") for part in parts)
        return whole, template, hashlib.sha256(whole.encode()).hexdigest()[:12]
    except OSError as error:
        raise PromptError(f"{path}: prompt template can't be read ({error.strerror})") from None
    except TemplateError as error:
        raise PromptError(f"{path}: broken prompt template: {error}") from None


def template_path(name: str, overrides: Mapping[str, Path] | None = None) -> Path:
    """The file of a template name; an override comes first."""
    return overrides[name] if overrides and name in overrides else _SHIPPED[name]


def template_text(name: str, overrides: Mapping[str, Path] | None = None) -> str:
    """A template's text, with the shipped parts that it includes at the end."""
    return _load(template_path(name, overrides))[0]


def template_digest(name: str, overrides: Mapping[str, Path] | None = None) -> str:
    """The first 12 hex digits of the sha256 of a template's text."""
    return _load(template_path(name, overrides))[2]


def render(
    name: str,
    blocks: Sequence[str],
    variables: Mapping[str, Any],
    overrides: Mapping[str, Path] | None = None,
) -> list[str]:
    """Render blocks of a template, one text per block.

    Raises:
        PromptError: a block or a variable is missing. The message names the file.
    """
    path = template_path(name, overrides)
    template = _load(path)[1]
    if missing := [block for block in blocks if block not in template.blocks]:
        raise PromptError(f"{path}: has no block '{missing[0]}'")
    context = template.new_context(dict(variables))
    try:
        return ["".join(template.blocks[block](context)).strip() for block in blocks]
    except TemplateError as error:
        raise PromptError(f"{path}: blocks {', '.join(blocks)}: {error}") from None
