"""The backup: token_kl's top-k, draws of (a', d') and the priorities made of them, language discounting."""

import asyncio
from collections.abc import Callable, Sequence
from math import log
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from schemas.config import Config
from schemas.load import ConfigError
from schemas.rows import CorrectedTarget, Priority, ReplaySample
from storage.store import Store
from tasks.algorithms.nlac import NLAC
from tasks.engines.protocol import Request, ScoreRequest, Scores
from tasks.pipeline.checks import check_config
from tasks.pipeline.runner import run_stage
from tasks.runtime.context import stage_context
from tasks.runtime.stage import Inputs, StageFailed
from tasks.text.discounting import Discounting, measure_discounting
from tasks.training.critic_rows import measure_priorities
from tasks.training.records import TrainingResult
from tests.support.rules import number_game, role_of

MakeConfig = Callable[..., Config]
TO_LABELS = ("rollout", "bellman-targets", "cot-correction")


def foreseeing(request: Request) -> str:
    """The number game's player, whose d' is one of two."""
    if role_of(request) == "predict":
        return f"Future: it is {'found' if request.sampling.seed % 2 else 'missed'} soon"
    return number_game(request)


def _score(request: ScoreRequest) -> Scores:
    """A description is likelier by far where the forecast is 'found'."""
    each = -0.25 if "it is found soon" in request.messages[-1]["content"] else -1.0
    return Scores(tuple(tuple(each for _ in segment.encode()) for segment in request.segments))


foreseeing.score = _score  # type: ignore[attr-defined]
FORESEEING = "tests.stages.test_backup:foreseeing"


def run(store: Store, config: Config, *stages: str) -> pl.DataFrame:
    """Run stages of iteration 0; the last one's last table."""

    async def work() -> None:
        for stage in stages:
            await run_stage(store, config, stage, 0)

    asyncio.run(work())
    return table(store, config, stages[-1])


def table(store: Store, config: Config, stage: str, name: str | None = None) -> pl.DataFrame:
    made = store.committed(config.run, stage, 0)
    assert made is not None
    return made.scan(name or list(made.manifest.tables)[-1]).collect()


# --- priorities


def label(name: str, transition: str, **scored: Any) -> CorrectedTarget:
    return CorrectedTarget(
        run="trial", iteration=0, corrected_id=name, target_id=name, transition_id=transition, verdict="clean",
        thought_before="", thought="", description="d", leak_before=0, leak_after=0, leaks=[], attempts=0, **scored,
    )  # fmt: skip


def sample(number: int, transition: str, priority: float) -> ReplaySample:
    return ReplaySample(
        run="trial", iteration=0, sample_id=str(number), transition_id=transition, draw=number, priority=priority,
        scored=False, probability=0.1, weight=1.0,
    )  # fmt: skip


def priorities(
    targets: list[CorrectedTarget],
    scores: dict[str, tuple[float, ...]],
    at: Path,
    *,
    drawn: Sequence[ReplaySample] = (),
    too_long: dict[str, str] | None = None,
) -> dict[str, Priority]:
    ctx = stage_context(Config(), NLAC, "critic-sft", Inputs(), at)
    trained = TrainingResult([], scores, {}, {}, {}, too_long or {}, None, 1)
    samples = [*drawn, *(sample(n, t.transition_id, 9.0) for n, t in enumerate(targets))]
    found = measure_priorities(ctx, samples, targets, trained)
    assert len({row.transition_id for row in found}) == len(found)
    return {row.transition_id: row for row in found}


def test_priorities_by_hand(tmp_path: Path) -> None:
    targets = [
        label("1", "one draw", backup_logprobs=[-0.5, -0.25]),
        label(
            "2",
            "three draws",
            backup_logprobs=[log(0.5), 0.0],
            backup_draw_logprobs=[log(0.5), log(0.2), log(0.05)],
        ),
        label("3", "better than B", backup_logprobs=[-2.0]),
        label("4", "unscored", backup_logprobs=None),
        label("5", "twice", backup_logprobs=[-1.0]),
        label("6", "twice", backup_logprobs=[-3.0], backup_draw_logprobs=[-3.0, -3.0]),
    ]
    scores = {"1": (-1.0, -1.75), "2": (-2.0, -2.0), "3": (-1.0,), "4": (-1.5,), "5": (-4.0,), "6": (-4.0,)}
    found = priorities(targets, scores, tmp_path)
    # (-.75 + 2.75) / 2
    assert (found["one draw"].priority, found["one draw"].backup_draws) == (pytest.approx(1.0), 1)
    # mean of p_B is (.5 + .2 + .05) / 3 = .25; (log .25 + 4) / 2
    assert found["three draws"].priority == pytest.approx((log(0.25) + 4) / 2)
    assert found["three draws"].backup_logprob == pytest.approx(log(0.25) / 2)
    assert (found["three draws"].backup_draws, found["three draws"].priority_kind) == (3, "kl_bound")
    assert found["better than B"].priority == 0.0
    assert (found["unscored"].priority, found["unscored"].priority_kind) == (1.5, "nll")
    assert found["unscored"].backup_draws is None
    # (4 - 1) and (4 - 3), averaged
    assert (found["twice"].priority, found["twice"].backup_draws) == (pytest.approx(2.0), 2)


def test_a_backup_by_a_model_with_other_tokens_is_averaged_over_the_critics(tmp_path: Path) -> None:
    # log p_B(d) = -2 in four tokens of its own, log p_theta(d) = -6 in two of the critic's
    found = priorities([label("1", "t", backup_logprobs=[-0.5] * 4)], {"1": (-3.0, -3.0)}, tmp_path)
    assert found["t"].priority == pytest.approx(2.0)


def test_every_drawn_transition_gets_a_row_and_one_without_a_score_a_priority_that_falls(
    tmp_path: Path,
) -> None:
    targets = [
        label("1", "scored", backup_logprobs=[-0.5]),
        label("2", "dropped", status="row_dropped", error="leaks"),
        label("3", "once scored", status="score_failed", error="refused"),
        label("4", "once scored", backup_logprobs=[-0.5]),
        label("5", "long", backup_logprobs=[-0.5]),
    ]
    drawn = [sample(7, "no target", 1.0), sample(8, "no target", 1.0), sample(9, "dropped", 50.0)]
    scores = {"1": (-4.5,), "4": (-2.5,)}
    found = priorities(targets, scores, tmp_path, drawn=drawn, too_long={"5": "600 tokens"})
    assert {name: (row.status, row.priority) for name, row in found.items()} == {
        "scored": ("ok", pytest.approx(4.0)),
        "once scored": ("ok", pytest.approx(2.0)),
        "no target": ("target_failed", 0.5),  # half of what it was drawn with
        "dropped": ("row_dropped", pytest.approx(2.0)),  # half of the largest measured now
        "long": ("too_long", pytest.approx(2.0)),
    }
    assert {row.priority_kind for row in found.values()} == {"kl_bound"}
    assert (found["dropped"].error, found["long"].error) == ("leaks", "600 tokens")
    assert found["no target"].critic_logprob is None and found["no target"].description_tokens == 0


# --- draws of (a', d')


@pytest.mark.slow
def test_further_draws_leave_the_label_alone_and_enter_the_priority(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    found = {}
    for draws in (1, 3):
        store = Store(tmp_path / str(draws))
        config = make_config(rules=FORESEEING, replay={"transitions": 24}, backup={"draws": draws})
        scored = run(store, config, *TO_LABELS, "critic-sft")
        found[draws] = (
            table(store, config, "bellman-targets"), table(store, config, "cot-correction"), scored
        )  # fmt: skip
    (single, single_labels, single_scores), (several, labels, scores) = found[1], found[3]
    assert single["other_draws"].is_null().all() and single_labels["backup_draw_logprobs"].is_null().all()
    assert single.drop("other_draws").equals(several.drop("other_draws"))

    going_on = several.filter(~pl.col("terminal"))
    assert several.filter("terminal").height and several.filter("terminal")["other_draws"].is_null().all()
    assert set(going_on["other_draws"].list.len()) == {2}
    others = going_on.explode("other_draws")["other_draws"].struct.unnest()
    assert set(others["next_future"]) == {"it is found soon", "it is missed soon"}
    assert set(others["status"]) == {"ok"}
    seeds = pl.concat(
        [g.struct.field("seed") for g in (others["next_future_drawn"], going_on["next_future_generation"])]
    )
    assert seeds.is_unique().all(), "each draw has a random stream of its own"

    joined = labels.join(several.select("target_id", "other_draws", "next_future"), on="target_id")
    for row in joined.iter_rows(named=True):
        if row["other_draws"] is None:
            assert row["backup_draw_logprobs"] is None
            continue
        size = len(f" {row['description']}".encode())
        futures = [row["next_future"], *(draw["next_future"] for draw in row["other_draws"])]
        each = [-0.25 * size if future == "it is found soon" else -size for future in futures]
        assert row["backup_draw_logprobs"] == pytest.approx(each)
    assert set(scores["backup_draws"]) == {1, 3} and set(single_scores["backup_draws"]) == {1}
    assert set(scores["priority_kind"]) == {"kl_bound"}
    assert not single_scores["priority"].equals(scores["priority"])


def test_without_bootstrapping_the_backup_is_told_of_one_step_and_of_no_end(
    store: Store, make_config: MakeConfig
) -> None:
    config = make_config(
        rules="tests.stages.test_backup:repeating", replay={"transitions": 24}, backup={"draws": 0}
    )
    run(store, config, *TO_LABELS)
    rows = table(store, config, "bellman-targets")
    for column in ("next_action", "next_future", "other_draws"):
        assert rows[column].is_null().all()
    told = dict(rows.select("terminal", "description").unique(subset="terminal").rows())
    assert told == {True: "The episode ended there.", False: "What comes after is not known."}


def repeating(request: Request) -> str:
    """The player, whose backups repeat what their prompt says of the rest of the episode."""
    if role_of(request) != "bootstrap":
        return number_game(request)
    said = request.messages[-1]["content"].partition("Reward: ")[2].splitlines()
    return f"Thought: so it is\nFuture: {said[1]}"


repeating.score = _score  # type: ignore[attr-defined]


def never_twice(request: Request) -> str:
    """The player, whose d' is empty for every second random stream."""
    return "" if role_of(request) == "predict" and request.sampling.seed % 2 else number_game(request)


never_twice.score = _score  # type: ignore[attr-defined]


def test_a_failed_draw_is_recorded_and_fails_the_target_only_where_the_label_needs_it(
    store: Store, make_config: MakeConfig
) -> None:
    config = make_config(
        rules="tests.stages.test_backup:never_twice", replay={"transitions": 24}, backup={"draws": 2}
    )
    labels = run(store, config, *TO_LABELS)
    rows = table(store, config, "bellman-targets").filter(~pl.col("terminal"))
    other = rows.explode("other_draws").select(
        "status", pl.col("other_draws").struct.field("status").alias("other")
    )
    assert set(other.rows()) == {
        (a, b) for a in ("ok", "next_future_failed") for b in ("ok", "next_future_failed")
    }
    assert rows.filter(status="next_future_failed")["error"].unique().to_list() == ["the model wrote nothing"]
    joined = labels.join(rows.explode("other_draws"), on="target_id")
    usable = joined["other_draws"].struct.field("status") == "ok"
    assert joined["backup_draw_logprobs"].is_not_null().to_list() == usable.to_list()


# --- token_kl


@pytest.fixture
def scored_by_the_model(make_config: MakeConfig, byte_checkpoint: Path) -> Callable[..., Config]:
    """The tiny model writes and scores backups, a token for each byte; rules play the rest."""
    plain = make_config()

    def make(**backup: Any) -> Config:
        return make_config(
            model={"name": str(byte_checkpoint)},
            engines={
                **plain.model_dump()["engines"],
                "local": {"backend": "transformers"},
            },
            roles={  # room for random lines to end by themselves
                "bootstrap": {"engine": "local", "structured": True, "max_tokens": 1200, "line_chars": 400},
                "predict": {"engine": "rules", "structured": False, "max_tokens": 1200},
            },
            replay={"transitions": 4},
            rollout={"episodes": 2, "max_steps": 3},
            backup=backup,
        )

    return make


def test_token_kl_keeps_the_backups_likeliest_tokens_and_trains_on_them(
    store: Store, scored_by_the_model: Callable[..., Config], tmp_path: Path
) -> None:
    config = scored_by_the_model(loss="token_kl", top_k=5)
    check_config(config, store.root)
    losses = run(store, config, *TO_LABELS, "critic-sft")
    labels = table(store, config, "cot-correction")
    assert set(labels["status"]) == {"ok"}
    for row in labels.iter_rows(named=True):
        given = f" {row['description']}".encode()
        ids, values = row["backup_top_ids"], row["backup_top_logprobs"]
        assert len(ids) == len(values) == len(row["backup_logprobs"]) == len(given)
        for top, of, logprob in zip(ids, values, row["backup_logprobs"], strict=True):
            assert len(set(top)) == len(of) == 5
            assert of == sorted(of, reverse=True) and logprob <= of[0] + 1e-6
            assert logprob <= of[-1] + 1e-6 or any(abs(logprob - value) < 1e-5 for value in of)
    hard = scored_by_the_model(loss="sft", top_k=5)
    other = Store(tmp_path / "sft")
    run(other, hard, *TO_LABELS, "critic-sft")
    plain = table(other, hard, "cot-correction")
    assert plain["backup_top_ids"].is_null().all() and plain["backup_top_logprobs"].is_null().all()
    assert plain["backup_logprobs"].equals(labels["backup_logprobs"])
    # the same labels, the same parameters before the first step; another loss, the same priorities
    assert (
        table(other, hard, "critic-sft", "priorities")["priority"].to_list() == losses["priority"].to_list()
    )
    steps = [
        table(s, c, "critic-sft", "training_steps")["critic_loss"][0]
        for s, c in ((other, hard), (store, config))
    ]
    assert steps[0] != steps[1]


def test_token_kl_over_labels_without_the_likeliest_tokens_is_refused(
    store: Store, scored_by_the_model: Callable[..., Config]
) -> None:
    run(store, scored_by_the_model(), *TO_LABELS)
    with pytest.raises(StageFailed, match=r"backup\.loss: token_kl needs .* cot-correction .* force=true"):
        run(store, scored_by_the_model(loss="token_kl"), "critic-sft")


def test_token_kl_needs_the_model_in_training_for_the_backup(
    scored_by_the_model: Callable[..., Config], make_config: MakeConfig, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    with pytest.raises(
        ConfigError, match=r"backup\.loss: token_kl .* engine 'rules' of roles\.bootstrap .*scripted"
    ):
        check_config(make_config(backup={"loss": "token_kl"}), tmp_path)
    config = scored_by_the_model(loss="token_kl")
    fixed = config.engines["local"].model_copy(update={"model": str(tiny_checkpoint)})
    with pytest.raises(ConfigError, match=r"backup\.loss: token_kl .* engines\.local\.model is"):
        check_config(config.model_copy(update={"engines": {**config.engines, "local": fixed}}), tmp_path)


# --- language discounting


def test_discounting_by_hand() -> None:
    # near: door, opens, reward, 0; far: guard, sleeps, door. Of door, opens, guard, treasure: 1 both, 1 near, 1 far.
    found = measure_discounting(
        "The door opens, a guard has the treasure",
        next_observation="The door opens.",
        reward=0.0,
        future="The guard sleeps by the door",
    )
    assert found == Discounting(next=0.25, future=0.25, both=0.25)


def test_the_reward_is_what_happens_next() -> None:
    found = measure_discounting("reward 1, win", next_observation="", reward=1.0, future="a win")
    assert found == Discounting(next=pytest.approx(2 / 3), future=pytest.approx(1 / 3), both=0.0)


def test_forms_of_a_word_are_one_and_a_text_without_content_has_no_shares() -> None:
    found = measure_discounting("opened doors", next_observation="a door opens", reward=0.0, future="")
    assert found == Discounting(next=1.0, future=0.0, both=0.0)
    assert measure_discounting("so it is", next_observation="a door", reward=0.0, future="x") is None


def test_labels_say_where_their_words_come_from(store: Store, make_config: MakeConfig) -> None:
    config = make_config(replay={"transitions": 24})
    labels = run(store, config, *TO_LABELS).join(
        table(store, config, "bellman-targets").select("target_id", "terminal"), on="target_id"
    )
    names = ("discount_next", "discount_future", "discount_both")
    assert (
        labels.filter("terminal").select(names).null_count().row(0) == (labels.filter("terminal").height,) * 3
    )
    going_on = labels.filter(~pl.col("terminal"))
    # "a hint, then it is found": found stands in d' ("then it is found"), hint in neither
    assert set(going_on.select(names).rows()) == {(0.0, 0.5, 0.0)}
    metrics = store.committed("trial", "cot-correction", 0).manifest.metrics
    assert [metrics[name] for name in names] == [0.0, 0.5, 0.0]


def deaf(request: Request) -> str:
    """The number game's player, on an engine that breaks when it is to score."""
    return number_game(request)


def _refuse(request: ScoreRequest) -> Scores:
    raise RuntimeError("the engine went down")


deaf.score = _refuse  # type: ignore[attr-defined]


def test_an_engine_that_scores_nothing_fails_the_stage_with_its_own_words(
    store: Store, make_config: MakeConfig
) -> None:
    config = make_config("tests.stages.test_backup:deaf")
    with pytest.raises(StageFailed, match=r"no corrected target could be scored.*the engine went down"):
        run(store, config, *TO_LABELS)
    assert store.committed(config.run, "cot-correction", 0) is None
