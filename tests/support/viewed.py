"""A small data root to look at: two runs of two iterations over the same tasks, with texts that attack the page."""

from pathlib import Path
from typing import Any

from schemas.load import dump_config
from schemas.rows import BellmanTarget, CorrectedTarget, Critique, Refinement, Transition
from storage.store import Store
from tests.support.committed import commit_rows
from tests.support.iterations import small_config
from tests.support.rows import (
    episode,
    evaluation,
    generation,
    improvement,
    training_row,
    training_steps,
    transitions,
)

HOSTILE = (
    "</script><script>document.title = 'owned'</script><img src=x onerror=\"document.title='owned'\">"
    "<!--<script> \x1b[2J [a](http://example.org) \u2028\u202e & 'quoted' {{ 7 * 7 }}"
)
LEAKY = "The critique says that nine is too high, and it isn't lower. So I try five."
RUNS, ITERATIONS, CRITIC, POLICY = ("first", "second"), (0, 1), "critic@00000:c", "policy@00000:p"
WORDS = ("Action:", "guess", "0", "1")


def make_word_tokenizer(folder: Path) -> Path:
    """A checkpoint without weights, whose tokenizer knows a few words."""
    from tokenizers import Tokenizer, decoders, models

    folder.mkdir(parents=True)
    core = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token=WORDS[0]))
    core.decoder = decoders.WordPiece(cleanup=False)
    core.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text("{}")
    return folder


def view_store(root: Path, checkpoint: Path) -> Store:
    """Commit the runs.

    Args:
        root: the data root.
        checkpoint: holds the tokenizer of the model that played.
    """
    store = Store(root)
    for run in RUNS:
        for iteration in ITERATIONS:
            _iteration(store, run, iteration, checkpoint)
    return store


def _iteration(store: Store, run: str, iteration: int, checkpoint: Path) -> None:
    config = small_config(checkpoint, run=run, engines={"local": {"backend": "transformers"}})
    store.set_config(run, iteration, dump_config(config))
    played = episode(run=run, iteration=iteration, task_id="train/1")
    seen = transitions(played)
    steps = [_spoken(seen[0], HOSTILE), seen[1]]
    commit_rows(store, "rollout", iteration, {"episodes": [played], "transitions": steps}, run=run)
    made = _improvement(steps[0], iteration)
    target = BellmanTarget(
        **_of(steps[0], iteration), target_id=made["replay_samples"][0].sample_id, terminal=False,
        next_action_text="guess 1", next_future=HOSTILE, thought=LEAKY, description="found after two more guesses",
        malformed=False, generation=generation(CRITIC), sample_id=made["replay_samples"][0].sample_id,
    )  # fmt: skip
    label = CorrectedTarget(
        **_of(steps[0], iteration), corrected_id=target.target_id, target_id=target.target_id, verdict="rewritten",
        thought_before=LEAKY, thought="If nine is too high, I try five.", description=target.description,
        leak_before=0.6, leak_after=0.0, leaks=["the critique says that nine is too high"], attempts=1,
    )  # fmt: skip
    commit_rows(
        store, "bellman-targets", iteration,
        {"replay_samples": made["replay_samples"], "bellman_targets": [target]}, run=run,
    )  # fmt: skip
    commit_rows(store, "cot-correction", iteration, {"corrected_targets": [label]}, run=run)
    rows = [training_row("critic-sft", "corrected_targets", label.corrected_id, CRITIC, run=run)]
    losses = [step.model_copy(update={"run": run, "iteration": iteration}) for step in training_steps(5)]
    commit_rows(store, "critic-sft", iteration, {"training_rows": rows, "training_steps": losses}, run=run)
    commit_rows(
        store, "critique", iteration, {"critiques": made["critiques"], "futures": made["futures"]}, run=run
    )
    commit_rows(store, "refinement", iteration, {"refinements": made["refinements"]}, run=run)
    source = made["refinements"][0].refinement_id
    rows = [training_row("policy-distillation", "refinements", source, POLICY, run=run)]
    commit_rows(store, "policy-distillation", iteration, {"training_rows": rows}, run=run)
    _evaluation(store, run, iteration)


def _spoken(step: Transition, observation: str) -> Transition:
    changes = {"observation": observation, "raw_action": "Action: guess 0", "thought": "as good as any"}
    tokens = {"token_ids": [0, 1, 2], "logprobs": [-0.001, -0.5, -3.0], "generation": generation("base")}
    return step.model_copy(update={**changes, **tokens})


def _of(step: Transition, iteration: int) -> dict[str, Any]:
    return {"run": step.run, "iteration": iteration, "transition_id": step.transition_id}


def _improvement(step: Transition, iteration: int) -> dict[str, list[Any]]:
    """Two rounds: the refinement of the first is judged again, and distilled with a corrected thought."""
    made = improvement(step, CRITIC, iteration=iteration)
    first: Critique = made["critiques"][0]
    first = first.model_copy(
        update={"critique": f"Nine is too high. {HOSTILE}", "generation": generation("base")}
    )
    refined: Refinement = made["refinements"][0]
    refined = refined.model_copy(
        update={
            "thought_before": LEAKY, "thought": "Five halves the range.", "verdict": "rewritten", "leak_before": 0.6,
            "leak_after": 0.0, "distil_reason": "optimal", "generation": generation("base"),
        }
    )  # fmt: skip
    second = first.model_copy(
        update={
            "critique_id": f"{refined.sample_id}/c/1", "round": 1, "action_source": "refined",
            "action_text": refined.action_text, "action": refined.action, "optimal": True, "yes_probability": 0.75,
            "critique": "it halves the range",
        }
    )  # fmt: skip
    return {**made, "critiques": [first, second], "refinements": [refined, made["refinements"][1]]}


def _evaluation(store: Store, run: str, iteration: int) -> None:
    version = "base" if iteration == 0 else POLICY
    played = [
        episode(
            number, run=run, iteration=iteration, split="eval", task_id=f"eval/{number}", policy_version=version,
            success=number < iteration, reward=float(number < iteration),
            episode_id=f"{run}/{iteration:05d}/eval/{number:05d}",
        )
        for number in range(2)
    ]  # fmt: skip
    steps = [
        step.model_copy(update={"action": f"{step.action} by {run} {iteration}"})
        for row in played
        for step in transitions(row)
    ]
    measured = evaluation(version, 2 + 5 * iteration, iteration=iteration, run=run)
    measured = measured.model_copy(
        update={"success_low": 0.1, "success_high": 0.9, "baseline_success_rate": 0.2}
    )
    tables: dict[str, list[Any]] = {"episodes": played, "transitions": steps, "evaluations": [measured]}
    commit_rows(store, "evaluation", iteration, tables, run=run)
