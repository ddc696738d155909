"""`model.dtype: auto` is settled once a run, before anything is frozen, digested or served."""

from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.config import Config
from storage.store import Store
from tasks.engines.dtype import Choice, Dtype
from tasks.engines.vllm.server_records import server_dir
from tasks.export.policy import find_policy
from tasks.pipeline.decision import decide
from tasks.pipeline.iterations import begin_iteration, finish_iteration, frozen_config, settle
from tasks.runtime.stage import StageFailed
from tests.support.iterations import Iterate
from tests.support.probe import stand_in_probe


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NLAC_MODEL_CACHE", str(tmp_path / "models"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_chosen_type_is_frozen_digested_and_served(
    store: Store, make_config: Callable[..., Config], iterate: Iterate, tmp_path: Path, dtype: Dtype
) -> None:
    served = {"backend": "openai", "serve": {}}
    engines = {"rules": make_config().engines["rules"].model_dump(), "own": served}
    config = make_config(algorithm="react", model={"dtype": "auto"}, engines=engines)
    with stand_in_probe(tmp_path, Choice(dtype=dtype, reason="measured")):
        (evaluation,) = iterate(config)
    frozen = frozen_config(store, "trial", 0)
    assert frozen is not None and frozen.model.dtype == dtype
    assert evaluation.committed.manifest.fingerprint_inputs.config["model.dtype"] == dtype
    leased = [folder.name for folder in (store.cache_dir / "servers").iterdir()]
    assert leased == [server_dir(frozen.engines["own"], frozen.model, store.cache_dir).name]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_run_keeps_its_type_wherever_it_goes_on(
    store: Store, make_config: Callable[..., Config], tmp_path: Path, dtype: Dtype
) -> None:
    auto = make_config(model={"dtype": "auto"})
    with stand_in_probe(tmp_path, Choice(dtype=dtype, reason="measured")):
        begin_iteration(store, auto, 0)
    finish_iteration(store, "trial", 0)
    assert begin_iteration(store, auto, 0).model.dtype == dtype, "finished under this very configuration"
    (kept,) = (tmp_path / "models" / "dtype").iterdir()
    other = "bfloat16" if dtype == "float32" else "float32"
    kept.write_text(Choice(dtype=other, reason="another machine").model_dump_json())
    assert begin_iteration(store, auto, 1).model.dtype == dtype
    assert settle(store, auto.model_copy(update={"run": "new"}), 0).model.dtype == other
    named = make_config(model={"dtype": other})
    assert begin_iteration(store, named, 1).model.dtype == other, "what is named counts"
    assert find_policy(store, "trial").config.model.dtype == other


def test_what_is_not_settled_is_not_digested(store: Store, make_config: Callable[..., Config]) -> None:
    with pytest.raises(StageFailed, match=r"model\.dtype: auto is not settled"):
        decide(store, make_config(model={"dtype": "auto"}), "rollout", 0)
