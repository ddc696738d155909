"""What others wrote is shown as text: no control of the terminal, no HTML, no link."""

import html
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from schemas.shown import link, markdown, visible

RENDERER = MarkdownIt("gfm-like", {"html": True, "linkify": False})
HOSTILE = [
    "<script>alert(1)</script>", "<img src=x onerror=y>", "[click](javascript:alert(1))", "![x](http://x/y.png)",
    "<http://evil.example>", "`code`", "*a* __b__ ~~c~~", "# title", "- item", "1. item", "| a | b |", "&lt;b&gt;",
    "\\[x](y)", "[a]: http://b", "a  \nb", "***", "> quote", "    code",
    "http://evil.example", "a@evil.example", "1\\. item", "&#64;",
]  # fmt: skip


def rendered(text: str) -> str:
    """The text of what Markdown makes of a text; fails on any element but one paragraph."""
    made = RENDERER.render(text).strip()
    assert re.fullmatch(r"<p>[^<>]*</p>|", made), made
    return html.unescape(made.removeprefix("<p>").removesuffix("</p>"))


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_renders_as_itself(text: str) -> None:
    assert rendered(markdown(text)) == " ".join(text.split())


def test_a_backslash_stands_only_where_every_renderer_takes_it_away() -> None:
    said = markdown("success: 0.5; policy@00000:ab http://x/y")
    assert said == "success: 0\\.5; policy&#64;00000:ab http&#58;//x/y"


@given(st.text(alphabet=st.sampled_from("<>[]()`*_#-+.!|~&\\:/ab 1\n\t\"'="), max_size=30))
def test_any_text_renders_as_itself(text: str) -> None:
    assert rendered(markdown(text)) == " ".join(text.split())


def test_control_characters_are_shown() -> None:
    assert (
        visible("\x1b[31mred\x1b]8;;http://x\x07\x9b\r\x00")
        == "\\x1b[31mred\\x1b]8;;http://x\\x07\\x9b\\x0d\\x00"
    )
    assert visible("a\u202eb\u2028") == "a\\u202eb\\u2028"
    assert visible("ordinary\ttext\nin späť 🙂") == "ordinary\ttext\nin späť 🙂"


def test_the_address_of_a_link_can_not_end_it() -> None:
    made = RENDERER.render(link("a](b", "http://x/y) <script> [z](w"))
    assert "<script>" not in made and made.count("<a ") == 1
