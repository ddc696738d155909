"""A served engine in a configuration: what it changes of a fingerprint, what it declares and is refused with."""

from typing import Any

from schemas.config import Config, EngineSection
from tasks.engines.backends import declared_capabilities
from tasks.pipeline.fingerprint_inputs import collect_fingerprint_inputs
from tasks.pipeline.registry import STAGES
from tasks.runtime.stage import Inputs


def fingerprint_inputs(**engine: Any) -> dict[str, Any]:
    config = Config.model_validate({"model": {"dtype": "float32"}, "engines": {"local": engine}})
    found = collect_fingerprint_inputs(
        STAGES["rollout"], config, 0, Inputs(adapters={"policy": None})
    ).config["engines.local"]
    assert isinstance(found, dict)
    return found


def test_where_a_server_listens_and_whether_it_sleeps_determine_nothing() -> None:
    plain = fingerprint_inputs(backend="openai", serve={})
    assert (
        fingerprint_inputs(backend="openai", serve={"sleep": True, "start_seconds": 5}, max_batch=3) == plain
    )
    assert plain["serve"] == {}


def test_a_served_engine_is_another_than_one_in_process_and_its_options_count() -> None:
    served = fingerprint_inputs(backend="openai", serve={})
    assert served != fingerprint_inputs(backend="vllm")
    assert served != fingerprint_inputs(backend="openai", serve={}, options={"kv_cache_dtype": "fp8"})


def test_engines_without_a_server_have_the_determinants_they_always_had() -> None:
    assert "serve" not in fingerprint_inputs(backend="transformers")


def test_it_declares_what_vllm_in_process_does() -> None:
    served = declared_capabilities(EngineSection(backend="openai", serve={}))  # type: ignore[arg-type]
    assert served == declared_capabilities(EngineSection(backend="vllm"))
