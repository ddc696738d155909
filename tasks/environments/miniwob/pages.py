"""The pages of the package `miniwob`, found without importing it: its import registers 130 environments elsewhere."""

from importlib.util import find_spec
from pathlib import Path

PAGES = (
    "buy-ticket", "choose-date", "choose-date-easy", "choose-date-medium", "choose-list", "click-button",
    "click-button-sequence", "click-checkboxes", "click-checkboxes-large", "click-checkboxes-soft",
    "click-checkboxes-transfer", "click-collapsible", "click-collapsible-2", "click-color", "click-dialog",
    "click-dialog-2", "click-link", "click-option", "click-scroll-list", "click-shades", "click-shape",
    "click-tab", "click-tab-2", "click-tab-2-easy", "click-tab-2-hard", "click-tab-2-medium", "click-test",
    "click-test-2", "click-test-transfer", "click-widget", "copy-paste", "copy-paste-2", "email-inbox",
    "email-inbox-delete", "email-inbox-forward", "email-inbox-forward-nl", "email-inbox-forward-nl-turk",
    "email-inbox-important", "email-inbox-nl-turk", "email-inbox-noscroll", "email-inbox-reply",
    "email-inbox-star-reply", "enter-date", "enter-password", "enter-text", "enter-text-2",
    "enter-text-dynamic", "enter-time", "find-word", "focus-text", "focus-text-2", "form-sequence-2",
    "generate-number", "grid-coordinate", "guess-number", "login-user", "login-user-popup", "multi-layouts",
    "multi-orderings", "navigate-tree", "odd-or-even", "order-food", "phone-book", "read-table",
    "read-table-2", "scroll-text", "scroll-text-2", "search-engine", "sign-agreement", "simple-algebra",
    "simple-arithmetic", "social-media", "social-media-all", "social-media-some", "text-transform",
    "tic-tac-toe", "unicode-test", "use-autocomplete", "use-spinner", "visual-addition",
)  # fmt: skip
"""Pages that text shows whole and the grammar of actions can do: nothing is dragged, drawn, hovered over or judged by
its picture."""


def folder() -> Path:
    """Where the package's files for browsers are.

    Raises:
        ImportError: the package is not installed.
    """
    spec = find_spec("miniwob")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(
            "the package miniwob is not installed; install it with: pip install -e '.[miniwob]'"
        )
    return Path(spec.submodule_search_locations[0]) / "html"


def core_script() -> Path:
    """What all pages share: seeds, the beginning and the end of an episode."""
    return folder() / "core" / "core.js"


def find_page(name: str) -> Path:
    """The file of a page.

    Raises:
        ValueError: the package has no such page.
        ImportError: the package is not installed.
    """
    known = {path.stem: path for path in (folder() / "miniwob").glob("*.html")}
    if name not in known:  # a name that leads elsewhere, too
        raise ValueError(
            f"pages: the package miniwob has no page '{name}'; it has {', '.join(PAGES[:5])}, ..."
        )
    return known[name]
