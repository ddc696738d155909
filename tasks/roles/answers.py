"""Whether an answer is whole. A text that a limit cut is no label: what it would have said last is missing."""

import re
from dataclasses import replace

from schemas.config import RoleSection
from schemas.rows import Generation
from tasks.runtime.role_client import Answer
from tasks.text.action_format import ActionFormat
from tasks.text.formats import Action, FutureText, read_action, read_future

_LABELLED_LINE = re.compile(r"^(?:Thought|Future|Reason): ?(.*)$", re.MULTILINE)


def why_cut(text: str, generation: Generation | None, line_limit: int | None = None) -> str | None:
    """Why a text is not whole; None where it is.

    Args:
        text: the completion.
        generation: its provenance; None: no model wrote it.
        line_limit: most characters of a line of free text. A line that fills it was cut, although the grammar let the
            text end in order.
    """
    if generation is None:
        return None
    if generation.finish_reason == "length":
        return f"max_tokens {generation.max_tokens} cut the text; raise it"
    if line_limit is not None and any(len(line) >= line_limit for line in _LABELLED_LINE.findall(text)):
        return f"a line of the text filled line_chars {line_limit}; raise it"
    return None


def cut_answer(section: RoleSection, answer: Answer) -> str | None:
    """Why a role's answer is not whole; None where it is."""
    text = answer.completion.text if answer.completion else answer.text
    return why_cut(text, answer.generation, section.line_limit)


def read_whole_action(text: str, generation: Generation | None, form: ActionFormat) -> Action:
    """Parse an action; one that max_tokens cut is not valid."""
    action = read_action(text, form)
    return replace(action, valid=action.valid and why_cut(text, generation) is None)


def read_whole_future(section: RoleSection, answer: Answer) -> FutureText:
    """Parse a predicted or backed-up future; one that was cut has a fault."""
    fault = cut_answer(section, answer)
    future = read_future(answer.text)
    return replace(future, fault=fault) if fault else future
