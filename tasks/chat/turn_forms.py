"""Chat templates for models that come without one, known by the marks in their vocabulary.

An answer ends with the model's own end token (`eos_token`). An instruct model's is the family's mark. A pretrained one
has never seen that mark: its row of the output layer equals those of thousands of unused tokens, and no adapter can
tell them apart. It knows the end of a text, and is taught to end an answer with it.
"""

from dataclasses import dataclass

CHATML = """
{%- for message in messages -%}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] }}
{{- (eos_token if message['role'] == 'assistant' else '<|im_end|>') + '\\n' }}
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
{{- message['content'] | trim + (eos_token if message['role'] == 'assistant' else '<end_of_turn>') + '\\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif -%}
"""


@dataclass(frozen=True)
class TurnForm:
    """How a family writes turns.

    Attributes:
        begin: the token that begins one.
        end: the token that ends one, in the family's instruct models an answer too.
        template: Jinja, as tokenizers hold it.
    """

    begin: str
    end: str
    template: str


FORMS = (
    TurnForm("<|im_start|>", "<|im_end|>", CHATML.strip()),
    TurnForm("<start_of_turn>", "<end_of_turn>", GEMMA.strip()),
)
