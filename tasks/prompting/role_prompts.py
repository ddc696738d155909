"""The prompt of each role, with the values that its template shows. Inference and training share them."""

from collections.abc import Sequence
from dataclasses import dataclass

from storage.history import State
from tasks.prompting.rendering import PromptRenderer
from tasks.prompting.truncation import Prompt


@dataclass(frozen=True)
class Attempt:
    """An action with its critique, as the refiner's prompt lists them."""

    action_text: str
    optimal: bool | None  # None: it was valued without a verdict
    critique: str


@dataclass(frozen=True)
class BackupInputs:
    """What the backup reads: (s, a, r, s'), and a' and d' unless the transition is terminal or bootstrapping is off."""

    state: State
    action_text: str
    next_observation: str
    reward: float
    terminal: bool
    next_action_text: str | None = None
    next_future: str | None = None

    @property
    def privileged(self) -> tuple[str, ...]:
        """The texts that the predict prompt does not show."""
        return tuple(t for t in (self.next_observation, self.next_action_text, self.next_future) if t)

    @property
    def visible(self) -> tuple[str, ...]:
        """The texts that the predict prompt shows."""
        past = [text for turn in self.state.turns for text in (turn.observation, turn.text)]
        return (*past, self.state.observation, self.action_text)


def whole_label(segments: tuple[str, ...], reasoning: str | None) -> tuple[str, ...]:
    """What has to fit behind a prompt: the label's segments, and the hidden chain of thought before them."""
    return (f"<think>\n{reasoning}\n</think>\n\n", *segments) if reasoning else segments


def policy_prompt(
    prompts: PromptRenderer, state: State, *, label: tuple[str, ...] = (), trains: bool = False
) -> Prompt:
    """The plain policy prompt: the episode as a chat."""
    return prompts.prompt("policy", "policy", label=label, trains=trains, state=state)


def predict_prompt(
    prompts: PromptRenderer,
    state: State,
    action_text: str,
    *,
    label: tuple[str, ...] = (),
    trains: bool = False,
) -> Prompt:
    """The successor's prompt, which shows (s, a) alone. The critic is trained under it."""
    shown = {"state": state, "action_text": action_text}
    return prompts.prompt("predict", "predict", label=label, trains=trains, **shown)


def backup_prompt(
    prompts: PromptRenderer, read: BackupInputs, *, label: tuple[str, ...] = (), trains: bool = False
) -> Prompt:
    """The backup's prompt."""
    return prompts.prompt(
        "bootstrap",
        "bootstrap",
        label=label,
        trains=trains,
        state=read.state,
        action_text=read.action_text,
        next_observation=read.next_observation,
        reward=read.reward,
        terminal=read.terminal,
        next_action=read.next_action_text,
        next_future=read.next_future,
    )


def evaluate_prompt(
    prompts: PromptRenderer,
    state: State,
    action_text: str,
    futures: Sequence[str],
    *,
    verdict: bool | None = None,
    label: tuple[str, ...] = (),
    trains: bool = False,
) -> Prompt:
    """The evaluator's prompt. An evaluator that thinks is asked for its reason first; `verdict` is one to be
    explained."""
    return prompts.prompt(
        "evaluate",
        "evaluate",
        label=label,
        trains=trains,
        state=state,
        action_text=action_text,
        futures=futures,
        verdict=verdict,
        reason_first=prompts.config.roles.evaluate.thinking,
    )


def aggregate_prompt(
    prompts: PromptRenderer, state: State, action_text: str, futures: Sequence[str]
) -> Prompt:
    """The prompt under which the evaluator says what several rollouts amount to."""
    return prompts.prompt("evaluate", "aggregate", state=state, action_text=action_text, futures=futures)


def refine_prompt(
    prompts: PromptRenderer,
    state: State,
    attempts: Sequence[Attempt],
    *,
    label: tuple[str, ...] = (),
    trains: bool = False,
) -> Prompt:
    """The refiner's prompt."""
    return prompts.prompt("refine", "refine", label=label, trains=trains, state=state, attempts=attempts)
