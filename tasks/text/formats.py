"""Formats of the roles' texts: ReAct actions, futures with a thought, verdicts.

One grammar a role: what may be sampled under it may be trained on, and the reverse. The thought is optional, because
correction may drop it. Parsing never guesses: a text that lacks its format is marked malformed or not valid, and its
row records that.
"""

import re
from dataclasses import dataclass

from tasks.text.action_format import ActionFormat


def _thought_then(name: str) -> tuple[re.Pattern[str], ...]:
    """Patterns of an optional thought followed by a part `name`. A `name` at the start of a line has precedence, since
    a thought may mention it.

    White space is stripped afterwards, which keeps the patterns linear in the length of any text.
    """
    return tuple(
        re.compile(rf"\s*+(?:Thought:(?P<thought>.*?){gap})?{name}:(?P<part>.*)", re.DOTALL)
        for gap in (r"\n[ \t]*+", "")
    )


_ACTION, _FUTURE = _thought_then("Action"), _thought_then("Future")
_VERDICT = re.compile(
    r"\s*+Optimal:\s*+(?P<optimal>yes|no)\b[\s.]*+(?:Reason:)?(?P<reason>.*)", re.DOTALL | re.IGNORECASE
)
_REASON_FIRST = re.compile(
    r"\s*+Reason:(?P<reason>.*)\n[ \t]*+Optimal:\s*+(?P<optimal>yes|no)\b[\s.]*+", re.DOTALL | re.IGNORECASE
)
_EVALUATION = "Evaluation:"

_REWRITE = re.compile(
    r"\s*(?:(?:the\s+)?(?:new\s+|rewritten\s+)?(?:thought|statement|conjecture)\s*:)?\s*(?P<thought>[^\n]*)",
    re.I,
)


def _split(text: str, patterns: tuple[re.Pattern[str], ...]) -> tuple[str, str] | None:
    """Thought (or "") and the other part of a text; None if the other part is missing."""
    match = next((found for pattern in patterns if (found := pattern.fullmatch(text))), None)
    return match and ((match["thought"] or "").strip(), match["part"].strip())


def _line(chars: int) -> str:
    """Regular expression of free text on one line."""
    return rf"[^\n]{{1,{chars}}}"


def _thought(chars: int) -> str:
    """Regular expression of an optional line of thought."""
    return rf"(?:Thought: {_line(chars)}\n)?"


def one_line(text: str) -> str:
    """The text without line breaks."""
    return " ".join(filter(None, (line.strip() for line in text.split("\n"))))


def label_thought(thought: str, chars: int | None) -> str:
    """A thought as a label has it: on one line, and "" where it would fill the line: it was cut there, or is too long.

    Args:
        thought: as it was written.
        chars: most characters of a line where the role is sampled; None: no limit.
    """
    line = one_line(thought)
    return "" if chars is not None and len(line) >= chars else line


@dataclass(frozen=True)
class Action:
    """A thought and an environment action, parsed from a model's text."""

    thought: str
    action: str
    valid: bool


def action_regex(form: ActionFormat, chars: int) -> str:
    """The format of a whole action, for structured output: a line of thought of up to `chars` characters or none, then
    the environment's own format."""
    return rf"{_thought(chars)}Action: (?:{form.regex})"


def future_regex(chars: int) -> str:
    """The format of a future: at most one line of thought, and a line of description, each up to `chars` characters."""
    return rf"{_thought(chars)}Future: {_line(chars)}"


def verdict_regex(chars: int, optimal: bool | None = None) -> str:
    """The format of a verdict: yes or no, or the given one, then a reason of up to `chars` characters on one line."""
    verdict = "(?:yes|no)" if optimal is None else _yes_or_no(optimal)
    return rf"Optimal: {verdict}\nReason: {_line(chars)}"


def read_action(text: str, form: ActionFormat) -> Action:
    """Parse thought and environment action; not valid if either lacks its format."""
    parts = _split(text, _ACTION)
    if parts is None:
        return Action("", text.strip(), valid=False)
    thought, action = parts
    return Action(thought, action, valid=re.fullmatch(form.reads or form.regex, action) is not None)


def write_action(thought: str, action: str, chars: int | None = None) -> str:
    """The text of an action; without a thought, the action line alone. `chars`: as for `label_thought`."""
    thought = label_thought(thought, chars)
    return f"Thought: {thought}\nAction: {action}" if thought else f"Action: {action}"


@dataclass(frozen=True)
class FutureText:
    """A thought and the description of a future. `fault` says why it is no label; without a 'Future:' all of the text
    is the description."""

    thought: str
    description: str
    fault: str | None = None

    @property
    def malformed(self) -> bool:
        """Whether it is no label."""
        return self.fault is not None


def read_future(text: str) -> FutureText:
    """Parse a predicted or backed-up future."""
    parts = _split(text, _FUTURE)
    if parts is None or not parts[1]:
        return FutureText("", text.strip(), "the text has no description behind 'Future:'")
    return FutureText(*parts)


def future_segments(thought: str, description: str) -> tuple[str, str]:
    """The label for the predict prompt, as (everything before the description, the description)."""
    thought = one_line(thought)
    return (f"Thought: {thought}\nFuture:" if thought else "Future:"), f" {one_line(description)}"


@dataclass(frozen=True)
class Verdict:
    """A judgement; `optimal` is None if it can't be parsed."""

    optimal: bool | None
    reason: str


def write_verdict(optimal: bool, reason: str, *, reason_first: bool = False) -> str:
    """The text of a verdict, as an evaluator writes it, or one that thinks (`reason_first`)."""
    verdict, reason = f"Optimal: {_yes_or_no(optimal)}", one_line(reason)
    return f"Reason: {reason}\n{verdict}" if reason_first else f"{verdict}\nReason: {reason}"


def verdict_segments(optimal: bool, reason: str | None = None) -> tuple[str, str]:
    """A verdict to be scored, as (everything before yes or no, yes or no); after a reason where one is given."""
    return ("Optimal:" if reason is None else f"Reason: {reason}\nOptimal:"), f" {_yes_or_no(optimal)}"


def evaluation_regex(chars: int) -> str:
    """The format of an evaluation without a verdict: one line of up to `chars` characters."""
    return f"{_EVALUATION} {_line(chars)}"


def read_evaluation(text: str) -> str | None:
    """Parse an evaluation without a verdict; None if the text lacks its format, or is empty."""
    said = text.strip()
    return (said.removeprefix(_EVALUATION).strip() or None) if said.startswith(_EVALUATION) else None


def _yes_or_no(optimal: bool) -> str:
    return "yes" if optimal else "no"


def read_verdict(text: str) -> Verdict:
    """Parse 'Optimal: yes|no' and the reason, which may stand before it."""
    match = _VERDICT.fullmatch(text) or _REASON_FIRST.fullmatch(text)
    if match is None:
        return Verdict(None, text.strip())
    return Verdict(match["optimal"].lower() == "yes", match["reason"].strip())


def read_choice(text: str, number: int) -> int | None:
    """An index below `number`, from its place counted from 1; None where the text names none."""
    places = {str(index + 1): index for index in range(number)}
    return places.get(text.strip().rstrip("."))


def read_rewrite(text: str, *, lines: bool = False) -> str:
    """A rewritten thought without a label or quotes around it; its first line, or all `lines`. May be empty."""
    found = _REWRITE.match(text)
    assert found is not None, "every part of the pattern is optional"
    return (text[found.start("thought") :] if lines else found["thought"]).strip(' "\n')
