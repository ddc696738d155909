"""Chat templates for models that come without one, known by the marks in their vocabulary."""

from dataclasses import dataclass

CHATML = """
{%- for message in messages -%}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}
"""

# No system role, roles strictly in turn, the assistant is called model, contents trimmed.
GEMMA = """
{{- bos_token }}
{%- for message in messages -%}
{%- if message['role'] not in ['user', 'assistant'] %}{{ raise_exception('System role not supported') }}{% endif -%}
{%- if (message['role'] == 'user') != (loop.index0 is even) %}{{ raise_exception('Roles must alternate') }}{% endif -%}
{{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else 'user') + '\\n' }}
{{- message['content'] | trim + '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif -%}
"""


@dataclass(frozen=True)
class TurnForm:
    """How a family writes turns.

    Attributes:
        begin: the token that begins one.
        end: the token that ends one, and a completion.
        template: Jinja, as tokenizers hold it.
    """

    begin: str
    end: str
    template: str


FORMS = (
    TurnForm("<|im_start|>", "<|im_end|>", CHATML.strip()),
    TurnForm("<start_of_turn>", "<end_of_turn>", GEMMA.strip()),
)
