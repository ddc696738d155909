"""A sample of an iteration's episodes as traces: steps, and below each its model calls, with prompts rendered again.

Below a step stand the policy's call and what the iteration did with that transition: its backup, critiques with their
futures, and refinements.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from schemas.rows import BellmanTarget, Critique, Episode, Generation, Refinement, Row, Transition
from schemas.shown import visible
from storage.history import State
from storage.mlflow.traces import EpisodeTrace, TracedSpan
from storage.sql.views import connect
from storage.store import Store
from tasks.export.show import texts_of
from tasks.export.stored import Part, Stored
from tasks.prompting.role_prompts import policy_prompt

CHAT_USAGE, MODEL = "mlflow.chat.tokenUsage", "mlflow.llm.model"
USED_BY = (BellmanTarget, Critique, Refinement)


def sampled(ids: Sequence[str], count: int) -> list[str]:
    """`count` of these ids, spread evenly over them; all where there are fewer."""
    return list(ids) if count >= len(ids) else [ids[n * len(ids) // count] for n in range(count)]


def episode_traces(store: Store, run: str, iteration: int, count: int) -> Iterator[EpisodeTrace]:
    """Traces of `count` episodes of each split that an iteration played.

    Args:
        store: the artifact store.
        run: the run.
        iteration: its iteration.
        count: of each split.
    """
    if not count:
        return
    stored = Stored(store, connect(store))
    for stage in ("rollout", "evaluation"):
        committed = store.committed(run, stage, iteration)
        if committed is None or Episode.TABLE not in committed.manifest.tables:
            continue
        played = committed.scan(Episode.TABLE).select("split", "episode_id").sort("episode_id").collect()
        for _, of_split in sorted(played.group_by("split"), key=lambda group: str(group[0])):
            for episode_id in sampled(of_split["episode_id"].to_list(), count):
                (episode,) = stored.rows(Episode, "episode_id", episode_id)
                yield _trace(stored, episode, f"{committed.manifest.folder}/{episode_id}")


def _trace(stored: Stored, episode: Episode, key: str) -> EpisodeTrace:
    steps = sorted(stored.rows(Transition, "episode_id", episode.episode_id), key=lambda step: step.step)
    ending = "success" if episode.success else "done" if episode.done else "truncated"
    seen = steps[0].observation if steps else ""
    tags = {
        "nlac.run": episode.run, "nlac.iteration": str(episode.iteration), "nlac.split": episode.split,
        "nlac.success": str(episode.success).lower(), "nlac.episode": episode.episode_id,
        "nlac.policy_version": episode.policy_version,
    }  # fmt: skip
    return EpisodeTrace(
        key,
        _shown(tags),
        TracedSpan(
            visible(f"{episode.split} {episode.task_id}")[:200], "AGENT",
            _shown({"task": episode.task_id, "observation": seen}),
            {"ending": ending, "reward": episode.reward, "steps": episode.steps},
            failed=None if episode.status == "ok" else f"{episode.status}: {visible(episode.error or '')}",
            below=list(_steps(stored, steps)),
        ),
    )  # fmt: skip


def _steps(stored: Stored, steps: Sequence[Transition]) -> Iterator[TracedSpan]:
    state: State | None = None
    for step in steps:
        state = State((), step.observation) if state is None else state
        outcome = {
            "observation": step.next_observation, "reward": step.reward, "done": step.done, "truncated": step.truncated,
        }  # fmt: skip
        calls = [*_policy_call(stored, step, state), *_spoken(step), *_uses(stored, step)]
        yield TracedSpan(
            f"step {step.step}", "CHAIN", _shown({"observation": step.observation, "action": step.action}),
            _shown(outcome), {"nlac.transition": step.transition_id, "nlac.action_valid": step.action_valid},
            below=calls,
        )  # fmt: skip
        state = state.after(step.raw_action, step.next_observation)


def _policy_call(stored: Stored, step: Transition, state: State) -> Iterator[TracedSpan]:
    if step.generation is not None:
        read = policy_prompt(stored.prompts(step), state)
        said = (
            f"<think>\n{step.reasoning}\n</think>\n\n{step.raw_action}" if step.reasoning else step.raw_action
        )
        yield _call("policy", read.messages, said, step.generation)


def _spoken(step: Transition) -> Iterator[TracedSpan]:
    """What the environment's own model said; only its last words are stored, as the next observation."""
    for generation in step.speaker_generations or ():
        yield _call("environment model", (), step.next_observation, generation)


def _uses(stored: Stored, step: Transition) -> Iterator[TracedSpan]:
    """What the step's own iteration wrote about it: backup, critiques and refinements."""
    for model in USED_BY:
        for row in stored.rows(model, "transition_id", step.transition_id):
            if (row.run, row.iteration) == (step.run, step.iteration):
                calls = list(_calls(texts_of(stored, row)))
                name = {BellmanTarget: "backup", Critique: "critique", Refinement: "refinement"}[model]
                yield TracedSpan(name, "CHAIN", {"row": _id(row)}, {"status": row.status}, below=calls)


def _calls(parts: Iterable[Part]) -> Iterator[TracedSpan]:
    """A span for each prompt, with the texts that follow it."""
    read: Part | None = None
    texts: list[str] = []
    for part in (*parts, None):
        if part is not None and not part.messages:
            texts.append(f"{part.title}\n{part.text}")
            continue
        if read is not None:
            shown = {"messages": [dict(message) for message in read.messages]}
            yield TracedSpan(read.title, "CHAT_MODEL", _shown(shown), _shown({"texts": texts}))
        read, texts = part, []


def _call(role: str, messages: Iterable[Any], said: str, generation: Generation) -> TracedSpan:
    read, wrote = generation.prompt_tokens, generation.completion_tokens
    usage = {"input_tokens": read, "output_tokens": wrote, "total_tokens": read + wrote}
    return TracedSpan(
        role, "CHAT_MODEL", _shown({"messages": [dict(message) for message in messages]}),
        _shown({"choices": [{"message": {"role": "assistant", "content": said}}]}),
        {CHAT_USAGE: usage, MODEL: generation.model_version, "nlac.finish_reason": generation.finish_reason},
    )  # fmt: skip


def _id(row: Row) -> str:
    return str(next(value for name, value in row if name.endswith("_id")))


def _shown(value: Any) -> Any:
    """The same with control characters shown: the viewer shows texts, not markup."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {name: _shown(part) for name, part in value.items()}
    return [_shown(part) for part in value] if isinstance(value, list) else value
