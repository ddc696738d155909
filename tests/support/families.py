"""Tokenizers of seven families' form: their marks, their special tokens, and chat templates that behave as theirs do.

Byte vocabularies without merges, so that a text has one tokenisation and a sampled one can be compared with it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.chat.turn_forms import CHATML, GEMMA

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_QWEN_TOOLS = """
{%- if tools -%}
{{ '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{ messages[0].content + '\\n\\n' }}{% endif -%}
{{ 'Tools:' }}{% for tool in tools %}{{ '\\n' + tool | tojson }}{% endfor %}{{ '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' -%}
{{ '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif -%}
{%- set asked = namespace(at=-1) -%}
{%- for message in messages if message.role == 'user' %}{% set asked.at = messages.index(message) %}{% endfor -%}
"""
_QWEN_CALLS = """
{%- for call in message.tool_calls or [] -%}
{{ '\\n' if not loop.first or message.content }}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor -%}
"""
_QWEN_RESULT = """
{%- if message.role == 'tool' -%}
{%- if loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}{% endif -%}
{{ '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif -%}
{%- endif -%}
"""

# Thinks unless told not to; the prompt holds no mark, or an empty block. The last answer is shown with its block.
QWEN3 = f"""{_QWEN_TOOLS}
{{%- for message in messages -%}}
{{%- if message.role == 'user' -%}}
{{{{ '<|im_start|>user\\n' + message.content + '<|im_end|>\\n' }}}}
{{%- elif message.role == 'assistant' -%}}
{{{{ '<|im_start|>assistant\\n' }}}}
{{%- if loop.last and loop.index0 > asked.at %}}{{{{ '<think>\\n\\n</think>\\n\\n' }}}}{{% endif -%}}
{{{{ message.content.split('</think>')[-1].lstrip('\\n') }}}}{_QWEN_CALLS}{{{{ '<|im_end|>\\n' }}}}
{{%- endif -%}}{_QWEN_RESULT}
{{%- endfor -%}}
{{%- if add_generation_prompt -%}}
{{{{ '<|im_start|>assistant\\n' }}}}
{{%- if enable_thinking is defined and not enable_thinking %}}{{{{ '<think>\\n\\n</think>\\n\\n' }}}}{{% endif -%}}
{{%- endif -%}}
"""

# Always thinks: the prompt opens the block, so a completion begins inside it; answers are shown without.
QWQ = f"""{_QWEN_TOOLS}
{{%- for message in messages -%}}
{{%- if message.role == 'user' -%}}
{{{{ '<|im_start|>user\\n' + message.content + '<|im_end|>\\n' }}}}
{{%- elif message.role == 'assistant' -%}}
{{{{ '<|im_start|>assistant\\n' + message.content.split('</think>')[-1].lstrip('\\n') }}}}
{_QWEN_CALLS}{{{{ '<|im_end|>\\n' }}}}
{{%- endif -%}}{_QWEN_RESULT}
{{%- endfor -%}}
{{%- if add_generation_prompt %}}{{{{ '<|im_start|>assistant\\n<think>\\n' }}}}{{% endif -%}}
"""

# The same without thoughts.
QWEN25 = QWQ.replace("<think>\\n", "").replace(".split('</think>')[-1].lstrip('\\n')", "")

# Names the day, one call a message, written as JSON without a mark and without the words beside it; ipython answers.
LLAMA3 = """
{{- bos_token }}
{%- if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif -%}
{{ '<|start_header_id|>system<|end_header_id|>\\n\\nToday: ' + date_string + '\\n\\n' }}
{%- if messages[0].role == 'system' %}{{ messages[0].content | trim }}{% set messages = messages[1:] %}{% endif -%}
{{ '<|eot_id|>' }}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{{ '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + message.content | tojson + '<|eot_id|>' }}
{%- else -%}
{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}
{%- if tools and loop.first %}{% for tool in tools %}{{ tool | tojson + '\\n\\n' }}{% endfor %}{% endif -%}
{%- if message.tool_calls -%}
{%- if message.tool_calls | length > 1 %}{{ raise_exception('one tool call at once') }}{% endif -%}
{%- set call = message.tool_calls[0].function -%}
{{ '{"name": "' + call.name + '", "parameters": ' + call.arguments | tojson + '}' }}
{%- else %}{{ message.content | trim }}{% endif -%}
{{ '<|eot_id|>' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif -%}
"""

# Marks of calls are special tokens, ids of calls have nine letters or digits, the system speaks in the last question.
MISTRAL = """
{%- if messages[0].role == 'system' -%}
{%- set system = messages[0].content %}{% set messages = messages[1:] -%}
{%- endif -%}
{{ bos_token }}
{%- for message in messages -%}
{%- if message.role == 'user' -%}
{%- if tools and messages | selectattr('role', 'equalto', 'user') | list | last == message -%}
{{ '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}
{%- endif -%}
{{ '[INST]' + (system + '\\n\\n' if system and loop.last else '') + message.content + '[/INST]' }}
{%- elif message.role == 'tool' -%}
{{ '[TOOL_RESULTS]' + {'content': message.content, 'call_id': message.tool_call_id} | tojson + '[/TOOL_RESULTS]' }}
{%- elif message.tool_calls -%}
{{ message.content + '[TOOL_CALLS][' }}
{%- for call in message.tool_calls -%}
{%- if call.id | length != 9 %}{{ raise_exception('ids have nine letters or digits') }}{% endif -%}
{{ '{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson }}
{{- ', "id": "' + call.id + '"}' + ('' if loop.last else ', ') }}
{%- endfor -%}
{{ ']' + eos_token }}
{%- else %}{{ message.content + eos_token }}{% endif -%}
{%- endfor -%}
"""


@dataclass(frozen=True)
class Family:
    """A family's form.

    Attributes:
        template: its chat template.
        end: what ends a turn.
        special: further special tokens.
        marks: added tokens that are no special ones.
        bos: what begins a chat, if anything does.
    """

    template: str
    end: str
    special: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    bos: str | None = None


_THINK = ("<think>", "</think>", "<tool_call>", "</tool_call>")
FAMILIES = {
    "chatml": Family(CHATML, "<|im_end|>", ("<|im_start|>",)),
    "gemma": Family(GEMMA, "<end_of_turn>", ("<start_of_turn>",), bos="<bos>"),
    "qwen3": Family(QWEN3, "<|im_end|>", ("<|im_start|>",), _THINK),
    "qwen2.5": Family(QWEN25, "<|im_end|>", ("<|im_start|>",), _THINK[2:]),
    "qwq": Family(QWQ, "<|im_end|>", ("<|im_start|>",), _THINK),
    "llama3": Family(
        LLAMA3, "<|eot_id|>", ("<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>"), bos="<|begin_of_text|>"
    ),
    "mistral": Family(
        MISTRAL, "</s>", bos="<s>",
        special=("[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]",
                 "[/TOOL_RESULTS]"),
    ),
}  # fmt: skip


def make_tokenizer(family: Family) -> "PreTrainedTokenizerFast":
    """A tokenizer of a family's form over bytes."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(symbols)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in family.marks])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=family.bos,
        eos_token=family.end,
        pad_token=family.end,
        additional_special_tokens=list(family.special),
        chat_template=family.template.strip(),
    )


def make_checkpoint(family: Family, folder: Path, architecture: str = "llama") -> Path:
    """A random model of two layers behind a family's tokenizer; `architecture` is transformers' model_type."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    tokenizer = make_tokenizer(family)
    tokenizer.save_pretrained(folder)
    config = AutoConfig.for_model(
        architecture, vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=4096, initializer_range=0.3,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder
