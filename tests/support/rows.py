"""A small run's rows, made up by hand: one episode of two steps, and one action improved out of it."""

from typing import Any

from schemas.rows import (
    Critique,
    Episode,
    Evaluation,
    Future,
    Generation,
    Refinement,
    ReplaySample,
    TrainingRow,
    TrainingStep,
    Transition,
)
from schemas.rows.evaluated import Evaluated


def generation(version: str) -> Generation:
    """Provenance of a text by a model version."""
    return Generation(
        engine="local",
        model_version=version,
        prompt_digest="0" * 12,
        temperature=1.0,
        top_p=1.0,
        max_tokens=8,
        seed=0,
        prompt_tokens=5,
        completion_tokens=3,
        finish_reason="stop",
        dropped_turns=0,
        dropped_chars=0,
    )


def episode(number: int = 0, *, iteration: int = 0, run: str = "trial", **changes: Any) -> Episode:
    """A lost training episode of two steps."""
    row = Episode(
        run=run,
        iteration=iteration,
        episode_id=f"{run}/{iteration:05d}/train/{number:05d}",
        split="train",
        environment="game",
        task_id="t1",
        seed=1,
        policy_version="base",
        steps=2,
        reward=0.0,
        game_reward=0.5,
        success=False,
        done=True,
        truncated=False,
        invalid_actions=0,
    )
    return row.model_copy(update=changes)


def transitions(of: Episode) -> list[Transition]:
    """Its two steps; the second ends it."""
    return [
        Transition(
            run=of.run,
            iteration=of.iteration,
            transition_id=f"{of.episode_id}/{step:03d}",
            episode_id=of.episode_id,
            split=of.split,
            step=step,
            task_id=of.task_id,
            observation=f"saw {step}",
            raw_action=f"guess {step}",
            thought="",
            action=str(step),
            action_valid=True,
            next_observation=f"saw {step + 1}",
            reward=0.0,
            game_reward=0.25,
            success=False,
            done=step == 1,
            truncated=False,
            policy_version="base",
            token_ids=[1, 2],
            logprobs=[-0.5, -0.25],
            generation=generation("base"),
        )
        for step in range(2)
    ]


def improvement(transition: Transition, critic: str, *, iteration: int = 0) -> dict[str, list[Any]]:
    """An action improved at a transition's state: the rows of every stage from replay to refinement."""
    run = transition.run
    sample, common = f"{run}/{iteration:05d}/draw/00000", {"run": run, "iteration": iteration}
    critique = f"{sample}/c/0"
    ids = {"sample_id": sample, "transition_id": transition.transition_id}
    return {
        "replay_samples": [
            ReplaySample(**common, **ids, draw=0, priority=1.0, scored=False, probability=0.5, weight=1.0)
        ],
        "futures": [
            Future(
                **common,
                future_id=f"{critique}/f/{n}",
                critique_id=critique,
                thought="",
                description=f"future {n}",
                malformed=False,
                generation=generation(critic),
            )
            for n in range(2)
        ],
        "critiques": [
            Critique(
                **common,
                **ids,
                critique_id=critique,
                round=0,
                action_source="fresh",
                action_text="guess 9",
                thought="",
                action="9",
                optimal=False,
                critique="too high",
            )
        ],
        "refinements": [
            Refinement(
                **common,
                **ids,
                refinement_id=f"{sample}/r/1",
                critique_id=critique,
                round=1,
                kind="refined",
                action_text="guess 5",
                thought_before="",
                thought="lower",
                action="5",
                valid=True,
                changed=True,
                distil=True,
            ),
            Refinement(
                **common,
                **ids,
                refinement_id=f"{sample}/r/0",
                critique_id=critique,
                round=1,
                kind="refined",
                action_text="?",
                thought_before="",
                thought="",
                action="",
                valid=False,
                changed=True,
                distil=False,
            ),
        ],
    }


def training_row(
    stage: str, source_table: str, source_id: str, version: str, *, run: str = "trial"
) -> TrainingRow:
    """A row trained on."""
    return TrainingRow(
        run=run,
        iteration=0,
        stage=stage,
        role="critic" if stage == "critic-sft" else "policy",
        source_table=source_table,
        source_id=source_id,
        adapter_version=version,
        weight=1.0,
        prompt_tokens=9,
        label_tokens=4,
        uses=1,
    )


def training_steps(count: int, stage: str = "critic-sft") -> list[TrainingStep]:
    """Losses 1, 1/2, 1/3 ..."""
    return [
        TrainingStep(
            run="trial",
            iteration=0,
            stage=stage,
            adapter_version="critic@00000:x",
            step=n,
            loss=1 / (n + 1),
            critic_loss=1 / (n + 1),
            learning_rate=1e-4,
            grad_norm=1.0,
            rows=4,
            label_tokens=40,
            tokens=90,
        )
        for n in range(count)
    ]


def evaluation(
    policy_version: str,
    successes: int,
    *,
    iteration: int = 0,
    run: str = "trial",
    split: Evaluated = "eval",
    failed: int = 0,
) -> Evaluation:
    """An evaluation over ten episodes, beside those that failed."""
    return Evaluation(
        run=run,
        iteration=iteration,
        split=split,
        policy_version=policy_version,
        environment="game",
        episodes=10,
        failed_episodes=failed,
        coverage=10 / (10 + failed),
        successes=successes,
        success_rate=successes / 10,
        success_low=0.0,
        success_high=1.0,
        mean_reward=successes / 10,
        mean_game_reward=0.5,
        mean_turns=4.0,
        invalid_action_rate=0.0,
    )
