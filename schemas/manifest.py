"""The records of committed stages: `manifest.json` and `current.json`."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

MANIFEST = "manifest.json"
"""The file that commits a stage's folder."""

MANIFEST_VERSION = 3
"""Version 1 calls `fingerprint_inputs` by another name, `determinants`. Since version 3 the file ends with a checksum
(`storage.sealed`)."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class StageKey(_Record):
    """Which stage of which iteration of which run."""

    model_config = ConfigDict(extra="ignore")

    stage: str
    run: str
    iteration: int


class FingerprintInputs(StageKey):
    """Everything that determines a stage's output; its sha256 is the fingerprint.

    Paths, log levels, concurrency, clock times and run ids are left out, because they must not cause recomputation.
    """

    model_config = ConfigDict(extra="forbid")

    code_version: int = Field(description="the stage's VERSION, raised when its code changes the output")
    config: dict[str, Any] = Field(
        description="resolved values of the fields that this stage uses, by dotted path"
    )
    prompts: dict[str, str] = Field(description="template name -> sha256 of its text")
    models: dict[str, str] = Field(description="use -> digest of the model or adapter that plays it")
    inputs: dict[str, str] = Field(description="'stage@iteration.table' -> logical digest")


class FileEntry(_Record):
    """One file of a committed folder."""

    path: str = Field(description="relative to the folder")
    bytes: int
    sha256: str


class TableEntry(_Record):
    """One table of a committed folder."""

    file: str
    schema_version: str = Field(description="'name@version', also in the Parquet footer")
    rows: int
    rejected: int = Field(description="rows whose status is not 'ok'")
    statuses: dict[str, int] = Field(description="rows by status")
    digest: str = Field(description="sha256 of the rows' content, independent of the file's encoding")


class AdapterEntry(_Record):
    """One adapter a training stage made."""

    folder: str
    version: str = Field(description="kind@iteration:fingerprint, as rows name it")
    digest: str = Field(description="sha256 of its weights and LoRA settings")


class RoleCost(_Record):
    """What the requests of one role in one stage cost, without those that an earlier attempt had answered."""

    texts: int = Field(0, description="texts asked for")
    scored: int = Field(0, description="given texts whose log-probabilities were asked for")
    prompt_tokens: int = Field(0, description="tokens read for texts")
    completion_tokens: int = Field(0, description="tokens written")
    seconds: float = Field(0.0, description="waited for answers; requests that run side by side count each")
    failed: int = Field(0, description="requests that were answered by an error")

    def __add__(self, other: "RoleCost") -> "RoleCost":
        return RoleCost(
            **{name: getattr(self, name) + getattr(other, name) for name in RoleCost.model_fields}
        )


class Summary(_Record):
    """The part of a manifest that queries read. It leaves out the fingerprint inputs, which are most of a manifest's
    text and grow with the number of earlier iterations."""

    model_config = ConfigDict(extra="ignore")

    fingerprint: str
    attempt: int = Field(1, description="2 and up: recomputed by force with the same fingerprint")
    fingerprint_inputs: StageKey
    tables: dict[str, TableEntry]
    adapters: dict[str, AdapterEntry]
    files: list[FileEntry]
    rows_in: int = Field(description="items the stage set out to process")
    tokens: int = Field(description="tokens generated, scored or trained on")
    started_at: str = Field(description="UTC, ISO 8601")
    seconds: float
    prefect_flow_run_id: str | None = None
    mlflow_run_id: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _version_1(cls, content: Any) -> Any:
        if isinstance(content, dict) and "determinants" in content:
            content = {**content, "fingerprint_inputs": content["determinants"]}
            del content["determinants"]
        return content

    @property
    def stage(self) -> str:
        return self.fingerprint_inputs.stage

    @property
    def run(self) -> str:
        return self.fingerprint_inputs.run

    @property
    def iteration(self) -> int:
        return self.fingerprint_inputs.iteration

    @property
    def folder(self) -> str:
        """Name of the committed folder."""
        return folder_name(self.fingerprint, self.attempt)


class Manifest(Summary):
    """The truth about one committed stage folder. A folder without a valid manifest counts as absent."""

    model_config = ConfigDict(extra="forbid")

    manifest_version: int = MANIFEST_VERSION
    fingerprint_inputs: FingerprintInputs
    metrics: dict[str, float] = Field(description="counts and rates, for people and MLflow")
    roles: dict[str, RoleCost] = Field({}, description="what each role's requests cost")
    packages: dict[str, str] = Field(description="versions of what computed it")
    machine: str


def folder_name(fingerprint: str, attempt: int) -> str:
    """Name of a committed folder: the fingerprint, followed by the attempt from the second on."""
    return fingerprint if attempt == 1 else f"{fingerprint}-{attempt}"


class CurrentEntry(_Record):
    """The committed folder of a stage that is current."""

    fingerprint: str
    folder: str
    stale: bool = Field(
        False, description="something upstream was recomputed by force; checked at the next run"
    )


class Current(_Record):
    """`current.json`, replaced atomically. Replay and SQL views follow it alone."""

    stages: dict[str, CurrentEntry] = {}
    state: Literal["running", "finished"] = "running"


class OrchestrationIds(_Record):
    """The Prefect and MLflow runs of a stage, for links in both directions."""

    prefect_flow_run_id: str | None = None
    mlflow_run_id: str | None = None
