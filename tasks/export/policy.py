"""Exports the trained policy from the store, as a peft adapter or merged into a plain checkpoint."""

import json
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from schemas.config import Config
from schemas.load import load_config
from storage.store import Committed, Store
from tasks.algorithms import algorithm_of
from tasks.engines.models import resolve_model
from tasks.engines.protocol import Adapter
from tasks.pipeline.iterations import frozen_config, settle
from tasks.training.adapters import form_of

DISTILLATION, WARM_START = "policy-distillation", "warm-start"
NOTE = "nlac.json"


class ExportError(Exception):
    """There is nothing to export, or the target can't be written; the message says what to do."""


@dataclass(frozen=True)
class Policy:
    """A policy, and the configuration that trained it.

    Attributes:
        config: the iteration's frozen configuration; the default one if nothing was run yet.
        iteration: the iteration that trained it; None for the untrained or warm-started model.
        adapter: None for the untrained model.
    """

    config: Config
    iteration: int | None
    adapter: Adapter | None


def find_policy(store: Store, run: str, iteration: int | None = None) -> Policy:
    """The policy that an iteration trained.

    Args:
        store: the artifact store.
        run: the run.
        iteration: None takes the newest with a trained policy, or else the model that iteration 0 starts from,
            warm-started or untrained. With algorithm react that model is the policy of every iteration.

    Raises:
        ExportError: that iteration trained no policy.
        StoreError: the committed folder is broken.
    """
    known = store.iterations(run)
    for number in reversed(known) if iteration is None else [iteration]:
        committed = store.committed(run, DISTILLATION, number)
        if committed is not None:
            config = frozen_config(store, run, number) or settle(
                store, load_config(None, {"run": run}), number
            )
            return Policy(config, number, committed_adapter(committed))
    latest = known[-1] if known and iteration is None else iteration
    begun = frozen_config(store, run, latest) if latest is not None else None
    if iteration is not None and (begun is None or algorithm_of(begun).trains):
        raise ExportError(
            f"iteration {iteration} of run '{run}' has no trained policy (there are iterations: "
            f"{', '.join(map(str, known)) or 'none'}); run it first: prefect deployment run nlac/iteration "
            f"-p run={run}"
        )
    warm = store.committed(run, WARM_START, 0) if known else None
    adapter = committed_adapter(warm, "warm_start") if warm else None
    return Policy(begun or settle(store, load_config(None, {"run": run}), 0), None, adapter)


def committed_adapter(committed: Committed, kind: str = "policy") -> Adapter:
    """An adapter of a committed folder, brought to where it is read."""
    entry = committed.manifest.adapters[kind]
    committed.fetch(f"{entry.folder}/")
    committed.check(content=False)
    return Adapter(version=entry.version, path=committed.path / entry.folder, digest=entry.digest)


def export_policy(
    policy: Policy, target: Path, *, merge: bool = False, dtype: Literal["float32", "bfloat16"] = "float32"
) -> None:
    """Write a policy to a folder, atomically. With `model.train: full` the result is always a checkpoint.

    Args:
        policy: the policy.
        target: a folder that is empty or does not exist.
        merge: write a plain checkpoint with its tokenizer, with the adapter merged into the weights, instead of the
            adapter alone.
        dtype: of the merged weights. float32 is exact. bfloat16 takes half the space and rounds away changes smaller
            than half a unit in a weight's last place, which is much of what a LoRA adapter learns.

    Raises:
        ExportError: the folder is not empty, or the policy is the untrained model and `merge` is false.
        tasks.engines.models.ModelError: the base model is not available.
    """
    target = target.resolve()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ExportError(f"{target}: not an empty folder, and nothing is overwritten; choose another one")
    if policy.adapter is None and not merge:
        raise ExportError(
            f"run '{policy.config.run}' has no trained policy yet; finish an iteration (make iteration), or "
            "export the untrained model with --merge"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
    aside.mkdir()
    try:
        if merge:
            _write_merged(policy, aside, dtype)
        elif policy.adapter is not None:
            _write_adapter(policy.config, policy.adapter, aside)
        _write_note(policy, aside, merge or policy.config.model.train == "full")
        aside.replace(target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _write_adapter(config: Config, adapter: Adapter, folder: Path) -> None:
    shutil.copytree(adapter.path, folder, dirs_exist_ok=True)
    if form_of(adapter.path) == "full":
        _write_tokenizer(config, folder)
        return
    # peft's Auto classes and vLLM read the base model from here; they know no 'package:' names.
    path = folder / "adapter_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings |= {
        "base_model_name_or_path": str(resolve_model(config.model)),
        "revision": config.model.revision,
    }
    path.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _write_merged(policy: Policy, folder: Path, dtype: str) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    section = policy.config.model
    base = str(resolve_model(section))
    full = policy.adapter is not None and form_of(policy.adapter.path) == "full"
    weights, revision = (
        (str(policy.adapter.path), None) if full and policy.adapter else (base, section.revision)
    )
    model = AutoModelForCausalLM.from_pretrained(weights, revision=revision, dtype=torch.float32)
    if policy.adapter is not None and not full:
        model = PeftModel.from_pretrained(model, str(policy.adapter.path)).merge_and_unload()
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    _write_tokenizer(policy.config, folder)


def _write_tokenizer(config: Config, folder: Path) -> None:
    from transformers import AutoTokenizer

    base = str(resolve_model(config.model))
    AutoTokenizer.from_pretrained(base, revision=config.model.revision).save_pretrained(folder)


def _write_note(policy: Policy, folder: Path, merged: bool) -> None:
    note = {
        "run": policy.config.run,
        "iteration": policy.iteration,
        "policy_version": policy.adapter.version if policy.adapter else "base",
        "adapter_digest": policy.adapter.digest if policy.adapter else None,
        "base_model": policy.config.model.name,
        "base_revision": policy.config.model.revision,
        "merged": merged,
    }
    (folder / NOTE).write_text(json.dumps(note, indent=2) + "\n", encoding="utf-8")
