"""A language model of 0.1 million parameters and one token per word, which learns policy and successor of a small world
on a CPU in minutes.

Its vocabulary has no blank, so structured output over characters is impossible: its roles are configured with
`structured: false`. A world lists its words in a module `word_model` of its own.
"""

import re
from collections.abc import Sequence
from pathlib import Path

PAD, END, UNKNOWN = "<pad>", "<end>", "<unknown>"
ROLES = ("<system>", "<user>", "<assistant>")
# An empty message adds nothing to the prompt; the worlds' templates have no system text.
TEMPLATE = (
    "{% for message in messages if message['content'] %}<{{ message['role'] }}> {{ message['content'] }} "
    "{% if message['role'] == 'assistant' %}" + END + " {% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
CONTEXT = 64  # tokens; the longest row, a prompt of `predict` with its label, has 26 on the lake, 32 on the line walk


def write_word_model(folder: Path, seed: int, words: Sequence[str], marks: str = "") -> Path:
    """Write an untrained checkpoint with its tokenizer: a Llama of two layers, 64 wide, in float32.

    Args:
        folder: target folder, created if missing.
        seed: of the weights; torch's global random state is unchanged.
        words: the vocabulary, without the marks.
        marks: characters that are tokens of their own where they end a word.

    Returns:
        The folder.
    """
    import torch
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    vocabulary = {
        word: number
        for number, word in enumerate([PAD, END, UNKNOWN, *ROLES, *dict.fromkeys([*words, *marks])])
    }
    core = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.decoder = decoders.WordPiece(cleanup=False)  # joins words with blanks and changes nothing else
    if marks:
        ending = pre_tokenizers.Split(Regex(rf"(?<=.)[{re.escape(marks)}]$"), behavior="isolated")
        core.pre_tokenizer = pre_tokenizers.Sequence([core.pre_tokenizer, ending])
        core.decoder = decoders.Sequence([core.decoder, *(decoders.Replace(f" {m}", m) for m in marks)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        additional_special_tokens=list(ROLES),
        chat_template=TEMPLATE,
    )
    tokenizer.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=vocabulary[END],
        pad_token_id=vocabulary[PAD],
        dtype="float32",
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        LlamaForCausalLM(config).save_pretrained(folder)
    return folder
