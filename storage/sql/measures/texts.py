"""What was written and what it cost: every generated text, and sums of them by stage and role."""

from pydantic import Field

from storage.sql.measures.base import Measured, Views


class GenerationRow(Measured):
    """One generated text. Of several rewrites of one thought only the last is stored."""

    stage: str = Field(description="stage that asked for it")
    role: str = Field(
        description="policy, predict, bootstrap, correct, evaluate, refine or environment_model"
    )
    source_table: str = Field(description="table that holds the text")
    source_id: str = Field(description="id in that table (of corrected_targets: corrected_id)")
    engine: str = Field(description="engine name in the configuration")
    model_version: str = Field(description="model or adapter version that wrote it; -> adapters.version")
    prompt_tokens: int = Field(description="tokens read")
    completion_tokens: int = Field(description="tokens written")
    finish_reason: str = Field(description="stop, length (cut by max_tokens) or error")
    dropped_chars: int | None = Field(description="characters left out of the prompt")


class StageSummaryRow(Measured):
    """One current stage, with its rates."""

    stage: str = Field(description="stage")
    rows_in: int = Field(description="items it set out to process")
    rows_out: int = Field(description="rows of all its tables")
    rejected_share: float | None = Field(
        description="share of rows whose status is not 'ok'; NULL without rows"
    )
    texts: int = Field(description="texts it generated that are stored")
    cut_share: float | None = Field(description="share of them that max_tokens cut; NULL without texts")
    tokens: int = Field(description="tokens generated, scored or trained on")
    seconds: float = Field(description="time it took to compute")
    tokens_per_second: float | None = Field(description="tokens / seconds")


class TokenCostRow(Measured):
    """Tokens of one stage and role."""

    stage: str = Field(description="stage")
    role: str = Field(description="as in generations; training: rows of optimizer steps")
    texts: int = Field(description="generated texts; of training, optimizer steps")
    prompt_tokens: int = Field(description="tokens read; of training, tokens without loss")
    completion_tokens: int = Field(description="tokens written; of training, tokens with loss")


_PLAYED = "case split when 'train' then 'rollout' else 'evaluation' end"
_CRITIQUED = "case round when 0 then 'critique' else 'refinement' end"
_FRESH = "action_source = 'fresh'"

_SOURCES = (
    ("transitions", _PLAYED, "policy", "transition_id", "generation", "true"),
    ("bellman_targets", "'bellman-targets'", "policy", "target_id", "next_action_generation", "true"),
    ("bellman_targets", "'bellman-targets'", "predict", "target_id", "next_future_generation", "true"),
    ("bellman_targets", "'bellman-targets'", "bootstrap", "target_id", "generation", "true"),
    ("corrected_targets", "'cot-correction'", "correct", "corrected_id", "generation", "true"),
    ("corrected_targets", "'cot-correction'", "correct", "corrected_id", "reasoning_generation", "true"),
    ("sampled_actions", "'action-samples'", "policy", "action_id", "generation", "true"),
    ("critiques", _CRITIQUED, "policy", "critique_id", "action_generation", _FRESH),
    ("critiques", _CRITIQUED, "evaluate", "critique_id", "generation", "true"),
    ("refinements", "'refinement'", "refine", "refinement_id", "generation", "kind = 'refined'"),
    ("refinements", "'refinement'", "correct", "refinement_id", "correction_generation", "true"),
    ("refinements", "'refinement'", "correct", "refinement_id", "reasoning_generation", "true"),
)  # fmt: skip
"""(table, stage, role, id, column, condition) of the texts that a row's own Generation describes."""


def _generations() -> str:
    parts = [
        f"select run, iteration, {stage} as stage, '{role}' as role, '{table}' as source_table, {key} as source_id, "
        f"{column} as g from {table} where {column} is not null and {condition}"
        for table, stage, role, key, column, condition in _SOURCES
    ]
    parts.append(
        "select f.run, f.iteration, case c.round when 0 then 'critique' else 'refinement' end, 'predict', 'futures', "
        "f.future_id, f.generation from futures f left join critiques c using (critique_id) "
        "where f.generation is not null"
    )
    # A choice by probabilities asks nobody: its row has the provenance of the action that it picks.
    parts.append(
        "select r.run, r.iteration, 'refinement', 'refine', 'refinements', r.refinement_id, r.generation "
        "from refinements r join critiques c using (critique_id) "
        "where r.kind = 'chosen' and r.generation is not null and c.yes_probability is null"
    )
    parts.append(
        f"select run, iteration, {_PLAYED}, 'environment_model', 'transitions', transition_id, "
        "unnest(speaker_generations) from transitions"
    )
    told = "engine, g.model_version, g.prompt_tokens, g.completion_tokens, g.finish_reason, g.dropped_chars"
    own = f"select * exclude (g), g.{told} from ({' union all '.join(parts)})"
    # Of further draws a row holds only what differs from the first.
    drawn = " union all ".join(
        "select run, iteration, 'bellman-targets' as stage, '"
        + role
        + "' as role, 'bellman_targets' as source_table, "
        f"target_id as source_id, first.engine, first.model_version, d.prompt_tokens, d.completion_tokens, "
        "d.finish_reason, null as dropped_chars "
        f"from (select run, iteration, target_id, next_{text}_generation as first, "
        f"unnest(other_draws).next_{text}_drawn as d from bellman_targets) where d is not null and first is not null"
        for role, text in (("policy", "action"), ("predict", "future"))
    )
    return f"{own} union all by name {drawn}"


TEXTS: Views = {
    "generations": (GenerationRow, _generations()),
    "stage_summary": (
        StageSummaryRow,
        """
        select s.run, s.iteration, s.stage, s.rows_in, s.rows_out,
               s.rejected / nullif(s.rows_out, 0) as rejected_share,
               count(g.stage) as texts, avg((g.finish_reason = 'length')::int) as cut_share,
               s.tokens, s.seconds, s.tokens / nullif(s.seconds, 0) as tokens_per_second
        from stages s left join generations g
             on g.run = s.run and g.iteration = s.iteration and g.stage = s.stage
        where s.state <> 'superseded' group by all""",
    ),
    "token_costs": (
        TokenCostRow,
        """
        select run, iteration, stage, role, count(*) as texts, sum(prompt_tokens) as prompt_tokens,
               sum(completion_tokens) as completion_tokens
        from generations group by all
        union all
        select run, iteration, stage, 'training', count(*), sum(tokens - label_tokens), sum(label_tokens)
        from training_steps group by all""",
    ),
}  # fmt: skip
