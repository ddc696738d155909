"""Mathematics problems: files, splits, and what counts as the right answer."""

import asyncio
import json
from collections import Counter
from pathlib import Path

import polars as pl
import pytest

from schemas.config import Config, EnvironmentSection
from tasks.environments import UnusableEnvironment, make_environment
from tasks.environments.base import Step
from tasks.environments.checks import faults_of
from tasks.environments.math import Math
from tasks.environments.math.problems import SHIPPED, last_box, load_problems
from tasks.pipeline.fingerprint_inputs import collect_fingerprint_inputs
from tasks.pipeline.registry import STAGES
from tasks.runtime.stage import Inputs

pytest.importorskip("math_verify", reason="math-verify is not installed: pip install -e '.[math]'")


def answer(problem: dict[str, object], text: str, tmp_path: Path) -> Step:
    """Answer the one problem of a file."""
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps({"problem": "What is it?", **problem}))

    async def run() -> Step:
        environment = Math(problems=str(path), eval_problems=str(path), seconds=2)
        await environment.reset(environment.tasks("eval")[0])
        return await environment.step(text)

    return asyncio.run(run())


def test_every_shipped_answer_verifies_and_a_wrong_one_does_not() -> None:
    assert faults_of(Math()) == []


def test_the_shipped_set_has_several_subjects_and_levels() -> None:
    problems = load_problems(SHIPPED)
    assert len(problems) == len({p.problem for p in problems}) >= 60
    assert min(Counter(p.subject for p in problems).values()) >= 8
    assert set(Counter(p.level for p in problems)) == {1, 2, 3, 4, 5}


@pytest.mark.parametrize(
    ("gold", "given", "right"),
    [
        (r"\frac{3}{4}", "0.75", True),
        (r"\frac{3}{4}", r"\boxed{\frac{6}{8}}", True),
        (r"\frac{3}{4}", r"\frac{4}{3}", False),
        ("12", "12 or 13", False),
        ("12", r"\boxed{12} or \boxed{13}", False),
        ("12", "$12$, perhaps $13$", False),
        ("2, 5", "5, 2", True),
        ("2, 5", "2", False),
        (r"(-\infty, 3)", r"(-\infty, 3]", False),
        (r"2\sqrt{3}", "sqrt(12)", True),
        ("(x+1)^2", "x^2 + 2x + 1", True),
        (r"\text{Tuesday}", r"\text{Friday}", False),
    ],
)
def test_an_answer_is_right_in_whatever_form_and_only_alone(
    gold: str, given: str, right: bool, tmp_path: Path
) -> None:
    step = answer({"answer": gold}, given, tmp_path)
    assert (step.reward, step.success, step.done, step.valid, step.status) == (right, right, True, True, "ok")


@pytest.mark.slow
def test_an_answer_that_hangs_the_verifier_is_worth_nothing_and_says_so(tmp_path: Path) -> None:
    step = answer({"answer": "12"}, "100000000000!", tmp_path)
    assert (step.reward, step.success, step.done) == (0.0, False, True)
    assert step.status == "verifier_timeout" and step.error == "not done after 2 s of CPU time"


@pytest.mark.parametrize("text", ["", "  ", "1" * 201])
def test_no_answer_ends_the_episode_as_an_invalid_action(text: str, tmp_path: Path) -> None:
    step = answer({"answer": "12"}, text, tmp_path)
    assert (step.done, step.valid, step.reward) == (True, False, 0.0)


def test_the_answer_is_what_stands_in_the_last_box() -> None:
    assert last_box(r"First \boxed{1}, then \boxed{\frac{a}{b}} in all.") == r"\frac{a}{b}"
    assert last_box(r"A set: \boxed{\{1, 2\}}") == r"\{1, 2\}"
    assert last_box("none") is None and last_box(r"\boxed{open") is None


def test_parquet_and_jsonl_give_the_same_problems(tmp_path: Path) -> None:
    records = [
        {
            "problem": f"Find {n}.",
            "solution": rf"It is \boxed{{{n}}}.",
            "level": f"Level {n}",
            "type": "Algebra",
        }
        for n in (1, 5)
    ]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, records)))
    pl.DataFrame(records).write_parquet(tmp_path / "p.parquet")
    problems = load_problems(tmp_path / "p.jsonl")
    assert problems == load_problems(tmp_path / "p.parquet")
    assert [(p.answer, p.level, p.subject) for p in problems] == [("1", 1, "Algebra"), ("5", 5, "Algebra")]


def test_levels_and_subjects_choose_among_the_problems_of_both_splits() -> None:
    hard = Math(levels=[5])
    assert {p.level for split in ("train", "eval") for p in hard.problems(split)} == {5}
    assert {p.subject for p in Math(subjects=["Number Theory"]).problems("train")} == {"Number Theory"}
    everything = Math()
    assert not {t.task_id for t in everything.tasks("train")} & {t.task_id for t in everything.tasks("eval")}
    assert len(everything.problems("train")) + len(everything.problems("eval")) == len(load_problems(SHIPPED))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"problem": "p"}', r"line 1: no `answer`, and no `solution`"),
        ('{"problem": "p", "answer": 3}\n{"answer": 1}', "line 2: `problem` is missing"),
        ("{", "line 1: no JSON"),
        ('{"problem": "p", "answer": 3}\n\n[1]', "line 3: no JSON object"),
        ("", "holds no problem"),
    ],
)
def test_a_bad_record_is_named(content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text(content)
    section = EnvironmentSection(name="math", options={"problems": str(tmp_path / "p.jsonl")})
    with pytest.raises(UnusableEnvironment, match=rf"environment\.options: .*p\.jsonl.*{said}"):
        make_environment(section)


def test_a_missing_file_and_an_empty_choice_are_refused() -> None:
    for options, said in (
        ({"problems": "/no/such.jsonl"}, "no such file"),
        ({"levels": [9]}, "widen levels"),
    ):
        with pytest.raises(UnusableEnvironment, match=said):
            make_environment(EnvironmentSection(name="math", options=options))


def test_a_files_content_determines_what_stages_give_and_a_wrong_gold_answer_is_a_fault(
    tmp_path: Path,
) -> None:
    path = tmp_path / "p.jsonl"
    config = Config.model_validate(
        {
            "model": {"name": str(tmp_path), "dtype": "float32"},
            "environment": {"name": "math", "options": {"problems": str(path), "eval_problems": str(path)}},
        }
    )
    (tmp_path / "config.json").write_text("{}")
    found = []
    for gold in ("5", "6"):
        path.write_text(json.dumps({"problem": "2 + 3?", "answer": gold}))
        found.append(
            collect_fingerprint_inputs(STAGES["rollout"], config, 0, Inputs(adapters={"policy": None})).config
        )
    key = "environment.files.problems"
    assert found[0][key] != found[1][key]
    assert {k: v for k, v in found[0].items() if "files" not in k} == {
        k: v for k, v in found[1].items() if "files" not in k
    }
    assert "math: in both splits: '2 + 3?'" in faults_of(make_environment(config.environment))
