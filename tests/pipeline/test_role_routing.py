"""Roles on engines of different kinds in one iteration: rules, the model in training, and another model on a server."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from schemas.config import Config, EngineSection, ModelSection
from storage.store import Store
from tasks.engines.backends import build_engine
from tasks.engines.protocol import Request, Sampling
from tests.support.iterations import Iterate
from tests.support.openai_server import KEY, served
from tests.support.rules import role_of


def test_each_role_is_played_where_the_configuration_sends_it(
    store: Store,
    make_config: Callable[..., Config],
    iterate: Iterate,
    tiny_checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TEST_KEY", KEY)
    seen: list[dict[str, Any]] = []
    other = build_engine(
        EngineSection(backend="scripted", rules="tests.support.rules:number_game"), ModelSection(), tmp_path
    )
    with served(other, tiny_checkpoint, seen) as address:
        base = make_config().model_dump()
        base["engines"] |= {
            "local": {"backend": "transformers"},
            "hosted": {
                "backend": "openai",
                "base_url": address,
                "model": "larger",
                "api_key_env": "TEST_KEY",
            },
        }
        base["roles"]["predict"] |= {"engine": "local", "max_tokens": 8, "structured": True}
        base["roles"]["evaluate"] |= {"engine": "hosted", "structured": False}
        results = iterate(Config.model_validate(base))
    made = {r.committed.manifest.stage: r.committed for r in results}
    versions = {
        name: set(made["critique"].scan(table).collect()["generation"].struct.field("model_version"))
        for name, table in (("predict", "futures"), ("evaluate", "critiques"))
    }
    critic = made["critic-sft"].manifest.adapters["critic"]
    assert versions == {"predict": {critic.version}, "evaluate": {"larger"}}
    refined = made["refinement"].scan("refinements").filter(kind="refined").collect()
    assert set(refined["generation"].struct.field("model_version")) == {
        "rules:tests.support.rules:number_game"
    }
    # The server was asked for critiques alone, one each.
    assert len(seen) == made["critique"].scan("critiques").collect().height > 0
    for request in seen:
        assert (
            role_of(Request(tuple(request["body"]["messages"]), Sampling())) == "evaluate"
            and request["body"]["model"] == "larger"
        )
