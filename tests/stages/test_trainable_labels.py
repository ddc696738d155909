"""What may be trained on: whole texts in their format. What a limit cut is a row with the reason."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from schemas.config import Config
from schemas.load import PROJECT_ROOT, ConfigError, load_config
from schemas.rows import Generation
from storage.store import Store
from tasks.algorithms import algorithm_of
from tasks.engines.protocol import Completion, Request
from tasks.pipeline.checks import check_config
from tasks.pipeline.engine_checks import check_limits
from tasks.pipeline.runner import run_stage
from tasks.roles.answers import why_cut
from tests.support.committed import table
from tests.support.rows import generation
from tests.support.rules import number_game, role_of

MakeConfig = Callable[..., Config]
TO_LABELS = ("rollout", "bellman-targets", "cot-correction")
LINE = 48


def run(store: Store, config: Config, *stages: str) -> None:
    async def work() -> None:
        for stage in stages:
            await run_stage(store, config, stage, 0)

    asyncio.run(work())


def odd(request: Request) -> bool:
    return request.sampling.seed % 2 == 1


def cut(text: str) -> Completion:
    return Completion(text, "length", 9, 9)


def cuts_backups(request: Request) -> str | Completion:
    """The player, whose every second backup max_tokens cuts, outcome and all still in its format."""
    text = number_game(request)
    return cut(text) if role_of(request) == "bootstrap" and odd(request) else text


def fills_lines(request: Request) -> str:
    """The player, whose every second backup fills the line of its description, and every second thought its own."""
    if role_of(request) == "bootstrap" and odd(request):
        return f"Thought: short\nFuture: {'x' * LINE}"
    if role_of(request) == "policy" and odd(request):
        return f"Thought: {'x' * LINE}\nAction: [5]"
    return number_game(request)


def cuts_forecasts(request: Request) -> str | Completion:
    text = number_game(request)
    return cut(text) if role_of(request) == "predict" else text


def cuts_actions(request: Request) -> str | Completion:
    """The player, whose every second action and refinement max_tokens cuts; every action is judged optimal."""
    text = number_game(request)
    if role_of(request) == "evaluate":
        return "Optimal: yes\nReason: it halves" if not odd(request) else text
    return cut(text) if role_of(request) in ("policy", "refine") and odd(request) else text


def cuts_rewrites(request: Request) -> str | Completion:
    """The player, whose corrector is cut off in every second rewrite, in its only line or behind it."""
    if role_of(request) != "correct":
        return number_game(request)
    more = "\nand" if request.sampling.seed % 4 == 1 else ""
    text = f"if a hint follows, it narrows the range{more}"
    return cut(text) if odd(request) else text


for player in (cuts_backups, fills_lines, cuts_forecasts, cuts_actions, cuts_rewrites):
    player.score = number_game.score  # type: ignore[attr-defined]


def played_by(player: Callable[[Request], Any]) -> str:
    return f"tests.stages.test_trainable_labels:{player.__name__}"


def test_a_cut_backup_is_malformed_and_not_trained_on(store: Store, make_config: MakeConfig) -> None:
    run(store, make_config(played_by(cuts_backups), replay={"transitions": 24}), *TO_LABELS, "critic-sft")
    targets = table(store, "bellman-targets", "bellman_targets")
    lost = targets.filter(status="malformed")
    assert 0 < lost.height < targets.height and lost["malformed"].all()
    assert set(lost["error"]) == {"max_tokens 96 cut the text; raise it"}
    assert lost["generation"].struct.field("finish_reason").unique().to_list() == ["length"]
    kept = set(targets.filter(status="ok")["target_id"])
    trained = table(store, "critic-sft", "training_rows").filter(role="critic")
    assert set(table(store, "cot-correction", "corrected_targets")["target_id"]) == kept
    assert set(trained["source_id"]) == kept
    share = store.committed("trial", "bellman-targets", 0).manifest.metrics["malformed_share"]  # type: ignore[union-attr]
    assert share == pytest.approx(lost.height / targets.height)


def test_a_line_that_is_full_was_cut_even_where_the_grammar_ended_the_text(
    store: Store, make_config: MakeConfig
) -> None:
    lined = {"engine": "rules", "structured": True, "line_chars": LINE}
    config = make_config(
        played_by(fills_lines),
        replay={"transitions": 24},
        roles={"bootstrap": lined, "predict": lined, "policy": lined},
    )
    run(store, config, *TO_LABELS)
    lost = table(store, "bellman-targets", "bellman_targets").filter(status="malformed")
    assert lost.height and set(lost["error"]) == {f"a line of the text filled line_chars {LINE}; raise it"}
    # An action behind a thought that was cut is whole.
    assert table(store, "rollout", "transitions").filter(action="[5]")["action_valid"].any()


def test_a_description_that_the_successor_could_not_sample_is_no_label(
    store: Store, make_config: MakeConfig
) -> None:
    roles = {"predict": {"engine": "rules", "structured": True, "line_chars": LINE}}
    run(store, make_config(played_by(too_long), replay={"transitions": 4}, roles=roles), *TO_LABELS[:2])
    rows = table(store, "bellman-targets", "bellman_targets")
    assert rows["error"].str.contains("longer than roles.predict.line_chars 48").all()


def too_long(request: Request) -> str:
    if role_of(request) == "bootstrap":
        return f"Future: {'and so on ' * 9}"
    return "Future: it ends" if role_of(request) == "predict" else number_game(request)


def test_a_forecast_that_was_cut_is_marked_and_still_backed_up(store: Store, make_config: MakeConfig) -> None:
    run(store, make_config(played_by(cuts_forecasts), replay={"transitions": 12}), *TO_LABELS, "critic-sft")
    going_on = table(store, "bellman-targets", "bellman_targets").filter(~pl.col("terminal"))
    assert going_on["next_future_malformed"].all() and set(going_on["status"]) == {"ok"}
    run(store, make_config(played_by(cuts_forecasts), replay={"transitions": 12}), "critique")
    assert table(store, "critique", "futures")["malformed"].all()


@pytest.mark.parametrize("action", ["fresh", "replayed"])
def test_cut_actions_and_refinements_are_not_distilled(
    store: Store, make_config: MakeConfig, action: str
) -> None:
    improvement = {"states": 16, "action": action}
    config = make_config(played_by(cuts_actions), replay={"transitions": 24}, improvement=improvement)
    run(store, config, *TO_LABELS, "critic-sft", "critique", "refinement")
    played = table(store, "rollout", "transitions")
    whole = played["generation"].struct.field("finish_reason") == "stop"
    assert not whole.all() and played.filter(~whole)["action_valid"].not_().all()
    refined = table(store, "refinement", "refinements")
    made = refined.filter(kind="refined").with_columns(
        cut=pl.col("generation").struct.field("finish_reason") == "length"
    )
    assert made["cut"].any() and (made["cut"] == (made["status"] == "cut")).all()
    assert not made.filter("cut")["distil"].any()
    assert made.filter("cut")["error"].str.contains("max_tokens").all()
    tried = table(store, "critique", "critiques").select("critique_id", "action_generation")
    kept = refined.filter(kind="kept").join(tried, on="critique_id")
    cut_off = kept["action_generation"].struct.field("finish_reason") == "length"
    assert (
        cut_off.any() and not kept.filter(cut_off)["distil"].any() and kept.filter(~cut_off)["distil"].any()
    )
    trained = table(store, "critic-sft", "training_rows").filter(role="policy")["source_id"]
    assert not set(trained) & set(played.filter(~whole)["transition_id"])


def test_a_rewrite_that_was_cut_has_not_passed(store: Store, make_config: MakeConfig) -> None:
    changes: dict[str, Any] = {"replay": {"transitions": 48}, "correction": {"attempts": 1}}
    run(store, make_config(played_by(cuts_rewrites), **changes), *TO_LABELS)
    rows = table(store, "cot-correction", "corrected_targets").filter(pl.col("attempts") > 0)
    seeds, made = rows["generation"].struct.field("seed"), rows["generation"].struct.field("finish_reason")
    lost = (made == "length") & (seeds % 4 == 3)
    assert lost.any() and not lost.all()
    assert (rows["verdict"] == "thought_dropped").equals(lost)


@pytest.mark.parametrize(
    ("text", "reason", "limit", "is_cut"),
    [
        ("Future: it ends", "stop", None, False),
        ("Future: it ends", "length", None, True),
        ("Future: it ends", "stop", 7, True),
        ("Future: it ends", "stop", 8, False),
        ("Thought: it ends\nFuture: x", "stop", 7, True),
        ("Thought: x\nAction: a long action", "stop", 7, False),  # its format says how long it may be
    ],
)
def test_what_is_cut(text: str, reason: str, limit: int | None, is_cut: bool) -> None:
    made: Generation = generation("base").model_copy(update={"finish_reason": reason})
    assert (why_cut(text, made, limit) is not None) == is_cut
    assert why_cut(text, None, limit) is None


@pytest.mark.parametrize("field", ["max_tokens", "line_chars"])
def test_the_successor_may_write_what_the_backup_may(
    field: str, make_config: MakeConfig, tmp_path: Path
) -> None:
    small = {"engine": "rules", "structured": True, "max_tokens": 200, "line_chars": 200}
    large = {**small, field: 300}
    with pytest.raises(
        ConfigError, match=rf"predict\.{field}: 200 is less than roles\.bootstrap\.{field} 300"
    ):
        check_config(make_config(roles={"predict": small, "bootstrap": large}), tmp_path)
    check_config(make_config(roles={"predict": large, "bootstrap": small}), tmp_path)


def test_the_defaults_sample_what_the_loss_assumes_and_have_room_for_two_lines() -> None:
    roles = Config().roles
    assert roles.policy.temperature == roles.predict.temperature == roles.bootstrap.temperature == 1.0
    for role in (roles.predict, roles.bootstrap):
        assert role.max_tokens * 3 >= 2 * role.line_chars
    whole = (path for path in (PROJECT_ROOT / "configs").rglob("*.yaml") if path.parent.name != "parts")
    for path in sorted(whole):
        config = load_config(path)
        assert not list(check_limits(config, algorithm_of(config))), path


def test_the_outcome_stands_before_the_detail() -> None:
    for name in ("predict", "bootstrap"):
        (line,) = [
            text
            for text in (PROJECT_ROOT / "prompts" / f"{name}.j2").read_text(encoding="utf-8").splitlines()
            if text.startswith("Future:")
        ]
        assert line.startswith("Future: first whether the agent succeeds or fails")
