"""Configurations: every problem is one line that names the field and the remedy, before anything is made."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from schemas.config import Config, ReplaySection, RolesSection
from schemas.config.base import Section
from schemas.load import PROJECT_ROOT, ConfigError, data_root, dump_config, load_config
from tasks.algorithms.nlac import NLAC
from tasks.algorithms.self_distillation import SELF_DISTILLATION
from tasks.pipeline.checks import check_config
from tasks.pipeline.plan import plan


def write(folder: Path, text: str) -> Path:
    path = folder / "c.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "text",
    ["a: 2024-99-99", f"seed: {'9' * 4301}", "run: " + "[" * 1000, "{a: " * 1000],
    ids=lambda text: text[:10],
)
def test_yaml_that_can_not_be_read_as_values_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="holds what can't be read as a value"):
        load_config(write(tmp_path, text))


SHIPPED = sorted(file for file in (PROJECT_ROOT / "configs").rglob("*.yaml") if file.parent.name != "parts")


@pytest.mark.parametrize("file", SHIPPED, ids=lambda p: p.name)
def test_shipped_configurations_load_and_dump_to_themselves(file: Path, tmp_path: Path) -> None:
    config = load_config(file)
    assert load_config(write(tmp_path, dump_config(config))) == config


def test_a_file_lies_over_those_it_extends_and_later_ones_over_earlier(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "a.yaml").write_text(
        "extends: [../b.yaml]\nreplay: {alpha: 0.1, beta: 0.2}\nseed: 3"
    )
    (tmp_path / "b.yaml").write_text("replay: {beta: 0.9, epsilon: 0.5}\nseed: 4")
    (tmp_path / "c.yaml").write_text("replay: {alpha: 0.3}")
    file = write(tmp_path / "parts", "extends: [a.yaml, ../c.yaml]\nreplay: {transitions: 7}")
    config = load_config(file, {"run": "trial"})
    assert config.replay == ReplaySection(transitions=7, alpha=0.3, beta=0.2, epsilon=0.5)
    assert (config.run, config.seed) == ("trial", 3)


BOMB = "a0: &a0 [0], " + ", ".join(f"a{n}: &a{n} [{f'*a{n - 1}, ' * 10}]" for n in range(1, 10))
"""A few lines that stand for a billion values."""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sed: 1", "sed: unknown field"),
        ("replay: {transition: 3}", "replay.transition: unknown field"),
        ("seed: many", "seed: .*valid integer.*'many'"),
        ("replay: {alpha: -1}", "replay.alpha: .*greater than or equal to 0"),
        ("target: {tau: 1.5}", "target.tau: "),
        ("run: ../escape", "run: "),
        ("run: [", "not valid YAML"),
        ("- a", "must hold fields"),
        ("roles: {policy: {engine: cloud}}", "roles.policy.engine: no engine 'cloud'"),
        ("roles: {all: {engine: cloud}}", "roles.policy.engine: no engine 'cloud'"),
        ("roles: {all: local}", "roles: all: must hold fields of a role"),
        ("roles: {all: {}, acts: {}}", "roles.acts: unknown field"),
        ("roles: {all: {}, policy: local}", "roles.policy: .*'local'"),
        ("extends: base.yaml", "extends: must be a list of files"),
        ("extends: [base.yaml]", r"base\.yaml: can't be read .*; .*c\.yaml extends it"),
        ("extends: [c.yaml]", r"c\.yaml extends this file; remove one of the two"),
        ("engines: {local: {backend: openai}}", "engines.local: backend openai needs base_url"),
        ("engines: {local: {serve: {}}}", "serve belongs to backend openai, not transformers"),
        ("engines: {local: {backend: openai, serve: {}, model: m}}", "remove model"),
        (
            "engines: {local: {backend: openai, serve: {}, merge_adapters: true}}",
            "merge_adapters: .*backend vllm",
        ),
        ("parameters: separate\ncritic: {mix: 0.5}", "critic.mix: rows of the other role"),
        (f"environment: {{options: {{{BOMB}}}}}", "more than 100,000 values"),
        ("environment: &a\n  options: {x: *a}", "more than 100,000 values"),
    ],
)
def test_a_bad_field_is_named_with_its_remedy(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config(write(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("sed: 1", "seed"),
        ("episodes: 3", "rollout.episodes"),
        ("replay: {transition: 3}", "replay.transitions"),
        ("critic: {learning_rat: 1}", "critic.learning_rate"),
        ("roles: {evaluate: {temprature: 1}}", "roles.evaluate.temperature"),
        ("model: {lora: {alfa: 1}}", "model.lora.alpha"),
        ("engines: {judge: {max_bach: 1}, local: {}}", "engines.judge.max_batch"),
        ("environment: {model: {max_token: 1}}", "environment.model.max_tokens"),
    ],
)
def test_an_unknown_field_names_the_one_that_is_nearest(tmp_path: Path, text: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown field, did you mean {meant}\\? If not, remove it or see"):
        load_config(write(tmp_path, text))


def test_an_unknown_field_that_is_near_none_is_only_unknown(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="zzz: unknown field; remove it"):
        load_config(write(tmp_path, "zzz: 1"))


def test_a_limit_that_leaves_no_room_for_a_prompt_is_refused(tmp_path: Path) -> None:
    small = Config.model_validate(
        {"model": {"context_length": 128}, "roles": {"policy": {"max_tokens": 4000}}}
    )
    with pytest.raises(
        ConfigError, match=r"policy\.max_tokens: 4000 leaves no room .* model\.context_length 128; lower it"
    ) as refused:
        check_config(small, tmp_path)
    assert len(str(refused.value).splitlines()) == 1
    judge = {"backend": "openai", "base_url": "http://a/v1", "model": "m", "context_length": 32}
    own = {
        "engines": {"local": {}, "judge": judge},
        "roles": {"evaluate": {"engine": "judge", "structured": False}},
    }
    with pytest.raises(ConfigError, match=r"evaluate\.max_tokens: 48 .* engines\.judge\.context_length 32"):
        check_config(Config.model_validate(own), tmp_path)


def test_a_configuration_for_another_machine_needs_nothing_of_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NLAC_TEST_KEY", raising=False)
    judge = {"backend": "openai", "base_url": "http://a/v1", "model": "m", "api_key_env": "NLAC_TEST_KEY"}
    given = {
        "model": {"name": "/on/the/cluster"},
        "engines": {"local": {"backend": "vllm"}, "judge": judge},
        "roles": {"evaluate": {"engine": "judge", "structured": False}},
    }
    with pytest.raises(ConfigError, match="NLAC_TEST_KEY is not set"):
        check_config(Config.model_validate(given), tmp_path)
    check_config(Config.model_validate(given), Path("/proc/nowhere"), elsewhere=True)
    wrong = {**given, "model": {"name": "neither a name"}, "roles": {"evaluate": {"engine": "judge"}}}
    with pytest.raises(ConfigError) as refused:
        check_config(Config.model_validate(wrong), tmp_path, elsewhere=True)
    assert [line.split(":")[0] for line in str(refused.value).splitlines()] == [
        "model.name", "roles.evaluate.structured",
    ]  # fmt: skip


def test_fields_of_all_roles_are_given_once_and_a_role_s_own_come_over_them(tmp_path: Path) -> None:
    text = "roles: {all: {top_p: 0.9, max_tokens: 7}, predict: {max_tokens: 8}, correct: {structured: true}}"
    config, shipped = load_config(write(tmp_path, text)), Config().roles
    assert {role: (section.top_p, section.max_tokens) for role, section in config.roles} == {
        role: (0.9, 8 if role == "predict" else 7) for role in RolesSection.model_fields
    }
    for role, section in config.roles:
        assert section.temperature == getattr(shipped, role).temperature
        assert section.structured
    assert "all" not in yaml.safe_load(dump_config(config))["roles"]


def fields(section: Section, *path: str) -> Iterator[tuple[str, ...]]:
    """Where each field of a section stands, and of the sections below it."""
    for name, value in section:
        keyed = value if isinstance(value, dict) else {}
        parts = (
            {(name,): value} if isinstance(value, Section) else {(name, key): v for key, v in keyed.items()}
        )
        for step, part in parts.items():
            yield from fields(part, *path, *step)
        if not parts:
            yield *path, name


@pytest.mark.parametrize("path", fields(Config()), ids=".".join)
def test_a_section_given_in_part_keeps_its_other_defaults(path: tuple[str, ...]) -> None:
    *above, name = path
    value = Config().model_dump()
    for key in path:
        value = value[key]
    given: dict[str, object] = {name: value}
    for key in reversed(above):
        given = {key: given}
    assert Config.model_validate(given) == Config()


SHIPPED = sorted(file for file in (PROJECT_ROOT / "configs").rglob("*.yaml") if file.parent.name != "parts")


@pytest.mark.parametrize("file", SHIPPED, ids=lambda p: p.name)
def test_shipped_configurations_back_each_transition_up_twice_or_more(file: Path) -> None:
    """Draws per new transition, however long episodes last: if all of them go on to the cap. On the line walk they have
    less than 2.5 moves on average."""
    config = load_config(file)
    if config.rollout.source == "none":
        return  # nothing new is played, so the ratio rises with every iteration
    moves = 2.5 if config.environment.name == "line_walk" else config.rollout.max_steps
    ratio = config.replay.transitions / (config.rollout.episodes * moves)
    if file.name == "default.yaml":
        assert ratio < 2 and "half a backup per transition" in file.read_text()
    else:
        assert ratio >= 2


def test_beta_rises_to_one_and_stays() -> None:
    annealed = ReplaySection(beta=0.4, beta_until=6)
    assert [annealed.beta_at(i) for i in (0, 3, 6, 9)] == pytest.approx([0.4, 0.7, 1.0, 1.0])
    assert {ReplaySection(beta=0.4).beta_at(i) for i in range(9)} == {0.4}


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: no such configuration file"):
        load_config("nowhere.yaml")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": {"name": "/no/such/folder"}}, "model.name"),
        ({"environment": {"name": "chess"}}, "environment.name: 'chess' is unknown"),
        ({"environment": {"options": {"game": "Nope-v0"}}}, "environment.options"),
        ({"engines": {"local": {"backend": "scripted", "rules": "no.where:f"}}}, "engines.local"),
        ({"roles": {"predict": {"template": "/no/such.j2"}}}, r"/no/such\.j2: prompt template can't be read"),
    ],
)
def test_what_would_fail_later_is_refused_before(
    tmp_path: Path, changes: dict[str, object], said: str
) -> None:
    root = tmp_path / "data"
    with pytest.raises(ConfigError, match=said):
        check_config(Config.model_validate(changes), root)
    assert not root.exists()


def test_an_api_key_is_only_ever_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    section = {
        "backend": "openai",
        "base_url": "http://127.0.0.1:9/v1",
        "model": "m",
        "api_key_env": "NLAC_TEST_KEY",
    }
    config = Config.model_validate(
        {
            "engines": {"local": {}, "judge": section},
            "roles": {"evaluate": {"engine": "judge", "structured": False}},
        }
    )
    monkeypatch.delenv("NLAC_TEST_KEY", raising=False)
    with pytest.raises(ConfigError, match="NLAC_TEST_KEY is not set"):
        check_config(config, tmp_path)
    monkeypatch.setenv("NLAC_TEST_KEY", "sk-very-secret")
    check_config(config, tmp_path)
    assert "sk-very-secret" not in dump_config(config)


def test_an_unwritable_data_root_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is not a folder; choose another with --data"):
        check_config(Config(), tmp_path / "file" / "data")


def test_a_role_is_refused_an_engine_that_cannot_hold_a_format(tmp_path: Path) -> None:
    section = {"backend": "openai", "base_url": "http://127.0.0.1:9/v1", "model": "m"}
    config = Config.model_validate(
        {
            "engines": {"local": {}, "judge": section},
            "roles": {"evaluate": {"engine": "judge", "structured": True}},
        }
    )
    with pytest.raises(ConfigError, match=r"roles.evaluate.structured: engine 'judge' can't hold a format"):
        check_config(config, tmp_path)


WHOLE = {"model": {"train": "full"}, "roles": {"all": {"engine": "first"}}}
SPEAKS = {"name": "twenty_questions", "model": {"engine": "first"}}
"""An environment that a model answers, here the model in training."""


@pytest.mark.parametrize("way", [{"backend": "vllm"}, {"backend": "openai", "serve": {}}])
def test_full_weights_in_vllm_have_one_engine_and_no_environment_asks_it(
    tmp_path: Path, way: dict[str, object]
) -> None:
    def check(**changes: object) -> None:
        config = Config.model_validate({**WHOLE, "engines": {"first": way, "second": {}}, **changes})
        check_config(config, tmp_path, elsewhere=True)

    check()
    roles = {"all": {"engine": "first"}, "refine": {"engine": "second"}}
    with pytest.raises(
        ConfigError, match=r"engines\.first, engines\.second: with model\.train full each holds"
    ):
        check(roles=roles)
    check(roles=roles, model={"train": "lora"})
    with pytest.raises(ConfigError, match=r"environment\.model\.engine: .* 'first' would start vLLM anew"):
        check(environment=SPEAKS)
    check(environment=SPEAKS, model={"train": "lora"})


def test_hosts_that_train_together_need_a_place_to_meet_on_the_machine_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NLAC_RENDEZVOUS", raising=False)
    config = Config.model_validate({"trainer": {"hosts": 2, "shard": "fsdp"}})
    check_config(config, tmp_path, elsewhere=True)
    with pytest.raises(
        ConfigError, match=r"trainer\.hosts: NLAC_RENDEZVOUS is 'not set'; set NLAC_RENDEZVOUS"
    ):
        check_config(config, tmp_path)
    monkeypatch.setenv("NLAC_RENDEZVOUS", "127.0.0.1:29400")
    check_config(config, tmp_path)


def test_the_plan_names_every_stage_and_its_pool() -> None:
    rows = plan(Config())
    assert [r.stage for r in rows] == [
        "rollout", "bellman-targets", "cot-correction", "critic-sft", "critique", "refinement",
        "policy-distillation", "evaluation",
    ]  # fmt: skip
    assert {r.pool for r in rows if r.stage in ("critic-sft", "policy-distillation")} == {
        Config().pools.training
    }
    assert all(r.bound.requests > 0 for r in rows if r.pool == Config().pools.inference)


def test_the_default_moves_the_target_by_half_or_more_an_iteration() -> None:
    config = load_config()
    own_rows = config.critic.batch_rows - round(config.critic.batch_rows * NLAC.mix(config, "critic"))
    steps = -(-config.replay.transitions // own_rows) * config.critic.epochs
    assert config.target_moved(steps) >= 0.5
    assert Config(target={"tau": 0.5}).target_moved(2) == pytest.approx(0.75)


def test_the_data_root_is_where_one_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NLAC_DATA", raising=False)
    assert data_root() == PROJECT_ROOT / "data"
    monkeypatch.setenv("NLAC_DATA", str(tmp_path / "a"))
    assert data_root() == tmp_path / "a"
    assert data_root(str(tmp_path / "b")) == tmp_path / "b"


def test_a_critique_reads_one_future_or_four_rollouts_unless_it_says_how_many() -> None:
    shipped = load_config().model_dump()
    config = Config.model_validate(shipped)
    assert NLAC.future_count(config) == 1 and SELF_DISTILLATION.future_count(config) == 4
    shipped["improvement"]["futures"] = 2
    assert SELF_DISTILLATION.future_count(Config.model_validate(shipped)) == 2


def test_separate_parameters_mix_nothing_and_shared_a_quarter() -> None:
    assert NLAC.mix(Config(), "critic") == 0.25
    separate = Config.model_validate(yaml.safe_load("parameters: separate"))
    assert NLAC.mix(separate, "critic") == 0.0
