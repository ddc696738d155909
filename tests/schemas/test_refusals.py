"""Fields that contradict one another, each refused by name when a configuration is read."""

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from schemas.columns import kind_of
from schemas.config import Config, EngineSection, TrainingSection

NATIVE = {"tool_calls": "native", "structured": False}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rollout": {"source": "none"}, "replay": {"max_age": 1}}, r"replay\.max_age: .*leave it empty"),
        ({"replay": {"from_runs": ["a", "b", "a"]}}, "from_runs: a run is named twice"),
        ({"parameters": "separate", "policy": {"mix": 0.5}}, r"policy\.mix: .*remove it"),
        ({"engines": {"local": {"backend": "openai", "base_url": "http://a/v1"}}}, "needs model"),
        (
            {"engines": {"local": {"context_length": 64}}},
            "context_length belongs to an engine with a `model`",
        ),
        ({"engines": {"local": {"backend": "scripted"}}}, "backend scripted needs rules"),
        ({"roles": {"policy": {"thinking": True, "structured": True}}}, "set structured to false"),
        ({"roles": {"policy": {"tool_calls": "native", "structured": True}}}, "set structured to false"),
        ({"roles": {"refine": NATIVE}}, r"refine\.tool_calls: only the policy calls tools"),
        ({"roles": {"all": 3}}, "all: must hold fields of a role"),
        ({"environment": {"model": {"template": "own.j2"}}}, r"model\.template: .*remove it"),
        ({"environment": {"model": NATIVE}}, r"model\.tool_calls: only the policy calls tools"),
        ({"environment": {"model": {"engine": "judge"}}}, r"environment\.model\.engine: no engine 'judge'"),
        ({"trainer": {"shard": "fsdp"}}, "fsdp needs several processes"),
        ({"critic": {"decay_from": 3}}, "belong together"),
        ({"critic": {"decay_from": 3, "decay_until": 3}}, "decay_until to a later iteration"),
    ],
)
def test_a_contradiction_is_refused_with_its_remedy(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Config.model_validate(changes)


def test_an_engine_of_its_own_model_may_say_how_long_its_context_is() -> None:
    given = {"backend": "openai", "base_url": "http://a/v1", "model": "m", "context_length": 64}
    assert EngineSection.model_validate(given).context_length == 64


def test_the_environment_model_is_played_as_configured_or_not_at_all() -> None:
    with pytest.raises(ValueError, match=r"environment\.model is not configured"):
        Config().role("environment_model")
    config = Config.model_validate({"environment": {"model": {"max_tokens": 9}}})
    assert config.role("environment_model").max_tokens == 9
    assert config.role("policy") == config.roles.policy


def test_the_learning_rate_falls_linearly_between_two_iterations_and_stays() -> None:
    falling = TrainingSection(decay_from=2, decay_until=4, final_rate=0.5)
    assert [falling.lr_scale(iteration) for iteration in range(6)] == [1.0, 1.0, 1.0, 0.75, 0.5, 0.5]
    assert TrainingSection().lr_scale(100) == 1.0


class Nested(BaseModel):
    """A column that holds two values."""

    number: int
    words: list[str] | None


def test_a_column_has_a_type_or_is_refused() -> None:
    assert kind_of(Nested | None) == {"number": int, "words": [str]}
    for unusable in (int | str, dict[str, int], object):
        with pytest.raises(TypeError, match="no column type"):
            kind_of(unusable)
