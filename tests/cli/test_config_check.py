"""`nlac config check`: what it says of memory and time."""

import json
import re
from collections.abc import Callable

import pytest
from typer.testing import CliRunner, Result

from flows.cli.main import app
from schemas.config import Config
from schemas.load import PROJECT_ROOT
from storage.store import Store
from tasks.pipeline.plan import measured_rates, plan
from tests.support.iterations import Iterate

FILE = str(PROJECT_ROOT / "configs" / "cluster" / "qwq-32b-twenty-questions.yaml")


def check(store: Store, *words: str) -> Result:
    return CliRunner().invoke(
        app, ["config", "check", FILE, "--elsewhere", *words], env={"NLAC_DATA": str(store.root)}
    )


def test_it_estimates_memory_and_time_for_a_stated_gpu_and_stated_rates(store: Store) -> None:
    done = check(
        store, "--gpu", "80", "--gpus", "8", "--generated-per-second", "20000", "--trained-per-second", "8000"
    )
    assert done.exit_code == 0, done.output
    assert re.search(r"^training +8 +\d+\.\d +weights ", done.stdout, re.M)
    assert re.search(r"^local: \d+ requests of full length at once$", done.stdout, re.M)
    targets = re.search(r"^bellman-targets .* ([\d,]+) +(\d+\.\d\d) ", done.stdout, re.M)
    assert targets and float(targets[2]) == pytest.approx(
        int(targets[1].replace(",", "")) / 20000 / 3600, abs=0.01
    )
    assert "At most" in done.stdout


def test_it_estimates_what_a_run_costs_at_a_stated_price(store: Store) -> None:
    rates = ("--gpus", "8", "--generated-per-second", "20000", "--trained-per-second", "8000")
    words = (*rates, "--iterations", "320", "--gpu-hour-price", "2.5")
    told = json.loads(check(store, *words, "--format", "json").stdout)
    each = sum(row["seconds"] or 0 for row in told["stages"]) / 3600
    hours = told["cost"]["hours"]
    assert (
        320 * each < hours < 640 * each
    )  # every eighth iteration has an evaluation, which the first has not
    assert told["cost"] == pytest.approx(
        {
            "iterations": 320,
            "hours": hours,
            "gpu_hours": 8 * hours,
            "gpu_hour_price": 2.5,
            "price": 20 * hours,
        }
    )
    said = (
        f"320 iterations: at most {hours:,.1f} hours, {8 * hours:,.0f} GPU hours, {20 * hours:,.0f} at 2.5 a"
    )
    assert said in check(store, *words).stdout
    assert "cost" not in json.loads(check(store, *rates, "--format", "json").stdout)


def test_a_price_without_rates_is_refused(store: Store) -> None:
    done = check(store, "--gpu-hour-price", "2.5")
    assert done.exit_code == 2 and "give --generated-per-second" in done.stderr


def test_without_a_gpu_and_rates_it_estimates_neither(store: Store) -> None:
    done = check(store)
    assert done.exit_code == 0 and "memory" not in done.stdout and "hours" not in done.stdout


def test_what_does_not_fit_ends_with_2_and_the_field(store: Store) -> None:
    done = check(store, "--gpu", "24", "--gpus", "8")
    assert done.exit_code == 2
    assert "does not fit into 8 x 24 GiB: " in done.stderr
    assert "engines.local.options.tensor_parallel_size: raise it" in done.stderr
    both = check(store, "--gpu", "16", "--gpus", "1")
    assert both.stderr.count("take a smaller model") == 2, "training and the engine have more to change"
    small = str(PROJECT_ROOT / "configs" / "examples" / "one_gpu_24gb.yaml")
    said = CliRunner().invoke(app, ["config", "check", small, "--elsewhere", "--gpu", "8"])
    assert said.stderr.count("take a smaller model") == 1, "one field is named once"


def test_rates_that_the_run_has_measured_come_before_stated_ones(
    store: Store, make_config: Callable[..., Config], iterate: Iterate
) -> None:
    config = make_config()
    made = {result.committed.manifest.stage: result.committed.manifest for result in iterate(config)}
    rates = measured_rates(store, config.run)
    rollout = made["rollout"]
    assert rates["rollout"] == pytest.approx(rollout.tokens / rollout.seconds)
    rows = {row.stage: row for row in plan(config, rates, {"inference": 1.0, "training": 1.0})}
    assert rows["rollout"].seconds == pytest.approx(rows["rollout"].bound.tokens / rates["rollout"])
    assert measured_rates(store, "another") == {}


def test_what_training_took_is_counted_in_label_tokens_as_its_bound_is(
    store: Store, make_config: Callable[..., Config], iterate: Iterate
) -> None:
    config = make_config(critic={"mix": 0.5}, policy={"mix": 0.5})
    made = {result.committed.manifest.stage: result.committed for result in iterate(config)}
    rates = measured_rates(store, config.run)
    rows = {row.stage: row for row in plan(config, rates)}
    for stage in ("critic-sft", "policy-distillation"):
        labels = int(made[stage].scan("training_steps").collect()["label_tokens"].sum())
        manifest = made[stage].manifest
        assert 0 < labels < manifest.tokens, "prompts are longer than labels"
        assert rates[stage] == pytest.approx(labels / manifest.seconds)
        assert labels <= rows[stage].bound.tokens
