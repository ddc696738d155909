"""What can be queried: every table and view with its columns, types and meanings, from the row models."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, Field

from schemas.columns import Kind, kind_of
from schemas.rows import TABLES, Generation
from storage.sql.measures import MEASURES

State = Literal["current", "stale", "superseded"]


class StageRow(BaseModel):
    """One committed stage folder, superseded ones too."""

    run: str = Field(description="run")
    iteration: int = Field(description="iteration")
    stage: str = Field(description="stage (deployment) that was committed")
    state: State = Field(
        description="current; stale: something upstream was recomputed; superseded: replaced"
    )
    fingerprint: str = Field(description="sha256 of all that determines its output")
    attempt: int = Field(description="2 and up: recomputed by force with the same fingerprint")
    rows_in: int = Field(description="items the stage set out to process")
    rows_out: int = Field(description="rows of all its tables")
    rejected: int = Field(description="rows whose status is not 'ok'")
    tokens: int = Field(description="tokens generated, scored or trained on")
    seconds: float = Field(description="time it took to compute")
    started_at: str = Field(description="UTC, ISO 8601")
    prefect_flow_run_id: str | None = Field(description="Prefect run that computed it")
    mlflow_run_id: str | None = Field(description="MLflow run that describes it")
    path: str = Field(description="its folder")
    folder: str = Field(description="its folder's name; -> superseded.*.folder")


class AdapterRow(BaseModel):
    """One adapter that a training stage committed."""

    run: str = Field(description="run")
    iteration: int = Field(description="iteration")
    stage: str = Field(description="stage that trained it")
    state: State = Field(description="state of that stage: current, stale or superseded")
    kind: str = Field(description="policy, critic or target")
    version: str = Field(
        description="as rows name it: policy_version, adapter_version, generation.model_version"
    )
    digest: str = Field(description="sha256 of its weights and LoRA settings")
    path: str = Field(description="the folder that peft loads")


class LineageRow(BaseModel):
    """One distilled action, joined back through refinement, critique, futures and replay to its transition."""

    run: str = Field(description="run")
    iteration: int = Field(description="iteration that distilled it")
    refinement_id: str = Field(description="-> refinements")
    kind: str = Field(description="kept, refined or chosen")
    refined_thought: str = Field(description="the thought distilled")
    refined_action: str = Field(description="the environment action distilled")
    changed: bool = Field(description="it differs from the judged action")
    distilled_into: str | None = Field(description="policy version trained on it; -> adapters.version")
    critique_id: str | None = Field(description="-> critiques")
    optimal: bool | None = Field(description="the verdict on the judged action")
    critique: str | None = Field(description="why, and how to improve")
    action_source: str | None = Field(description="fresh, replayed or refined")
    judged_action: str | None = Field(description="the environment action that was judged")
    future_ids: list[str] | None = Field(description="-> futures the critique read")
    futures: list[str] | None = Field(description="their descriptions, in the same order")
    critic_version: str | None = Field(description="successor that predicted them; -> adapters.version")
    sample_id: str | None = Field(description="-> replay_samples, bellman_targets")
    priority: float | None = Field(description="p_i at the draw")
    probability: float | None = Field(description="P(i) of the draw")
    weight: float | None = Field(description="its importance weight")
    transition_id: str | None = Field(description="-> transitions")
    transition_iteration: int | None = Field(description="iteration that collected it")
    step: int | None = Field(description="0-based step within the episode")
    observation: str | None = Field(description="what was newly seen before acting")
    replayed_action: str | None = Field(description="the environment action taken then")
    reward: float | None = Field(description="r")
    done: bool | None = Field(description="the episode ended there by its own rules")
    truncated: bool | None = Field(description="the episode was cut there from outside")
    acted_by: str | None = Field(description="policy version that acted; -> adapters.version")
    episode_id: str | None = Field(description="-> episodes")
    environment: str | None = Field(description="environment name")
    task_id: str | None = Field(description="task within the environment")
    episode_success: bool | None = Field(description="the episode succeeded")
    episode_reward: float | None = Field(description="its sum of r")


class ProblemRow(BaseModel):
    """One file that is broken, and so left out of the tables."""

    problem: str = Field(description="the file, what is wrong with it, and the remedy")


VIEWS: dict[str, type[BaseModel]] = {
    "lineage": LineageRow,
    "stages": StageRow,
    "adapters": AdapterRow,
    "problems": ProblemRow,
    **{name: model for name, (model, _) in MEASURES.items()},
}


@dataclass(frozen=True)
class Column:
    """A column, as SQL shows it."""

    name: str
    type: str
    meaning: str


@dataclass(frozen=True)
class Relation:
    """A table or view; `meaning` says what one row is."""

    name: str
    meaning: str
    columns: tuple[Column, ...]
    version: int | None  # of the row model; None for views


def relations() -> Iterator[Relation]:
    """Every table, in the order of the pipeline, then the views."""
    for name, model in {**TABLES, **VIEWS}.items():
        columns = tuple(
            Column(field, sql_type(info.annotation), info.description or "")
            for field, info in model.model_fields.items()
        )
        meaning = (model.__doc__ or "").split("\n\n")[0]
        yield Relation(
            name, " ".join(meaning.split()), columns, TABLES[name].VERSION if name in TABLES else None
        )


def columns(model: type[BaseModel]) -> dict[str, str]:
    """A table's or view's columns and DuckDB's names of their types, in order."""
    return {name: _sql_type(kind_of(field.annotation)) for name, field in model.model_fields.items()}


def sql_type(annotation: Any) -> str:
    """DuckDB's name of a field's type. The struct `Generation`, which many tables hold, is shortened to GENERATION."""
    return _sql_type(kind_of(annotation)).replace(_sql_type(kind_of(Generation)), "GENERATION")


def _sql_type(kind: Kind) -> str:
    if isinstance(kind, list):
        return f"{_sql_type(kind[0])}[]"
    if isinstance(kind, dict):
        return f"STRUCT({', '.join(f'{name} {_sql_type(inner)}' for name, inner in kind.items())})"
    return _SQL_TYPES[kind]


_SQL_TYPES: dict[type, str] = {str: "VARCHAR", int: "BIGINT", float: "DOUBLE", bool: "BOOLEAN"}
