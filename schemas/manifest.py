"""What a committed stage promises: `manifest.json` and `current.json`."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

MANIFEST_VERSION = 2
"""Version 1 calls `fingerprint_inputs` by another name, `determinants`."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class Place(_Record):
    """Which stage of which iteration of which run."""

    model_config = ConfigDict(extra="ignore")

    stage: str
    run: str
    iteration: int


class FingerprintInputs(Place):
    """All that determines a stage's output; its sha256 is the fingerprint.

    Not here, because they must not cause recomputation: paths, log levels, concurrency, clock times, run ids.
    """

    model_config = ConfigDict(extra="forbid")

    code_version: int = Field(description="the stage's VERSION, raised when its code computes something else")
    config: dict[str, Any] = Field(
        description="resolved values of the fields this stage uses, by dotted path"
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
    digest: str = Field(description="sha256 of the rows' content, whatever their encoding in the file")


class AdapterEntry(_Record):
    """One adapter a training stage made."""

    folder: str
    version: str = Field(description="kind@iteration:fingerprint, as rows name it")
    digest: str = Field(description="sha256 of its weights and LoRA settings")


class Summary(_Record):
    """What queries need of a manifest: all but what determined the output and what it was computed on, which is most
    of a manifest's text and grows with the number of iterations before it."""

    model_config = ConfigDict(extra="ignore")

    fingerprint: str
    attempt: int = Field(1, description="2 and up: recomputed by force with the same fingerprint")
    fingerprint_inputs: Place
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
    """The truth about one committed stage folder; a folder without a valid one does not exist."""

    model_config = ConfigDict(extra="forbid")

    manifest_version: int = MANIFEST_VERSION
    fingerprint_inputs: FingerprintInputs
    metrics: dict[str, float] = Field(description="counts and rates, for people and MLflow")
    packages: dict[str, str] = Field(description="versions of what computed it")
    machine: str


def folder_name(fingerprint: str, attempt: int) -> str:
    """Name of a committed folder: the fingerprint, from the second attempt on with its number."""
    return fingerprint if attempt == 1 else f"{fingerprint}-{attempt}"


class CurrentEntry(_Record):
    """Which committed folder of a stage counts."""

    fingerprint: str
    folder: str
    stale: bool = Field(
        False, description="something upstream was recomputed by force; checked at the next run"
    )


class Current(_Record):
    """`current.json`: replaced atomically; replay and SQL views follow it alone."""

    stages: dict[str, CurrentEntry] = {}
    state: Literal["running", "finished"] = "running"


class Lineage(_Record):
    """Ids of the orchestration runs behind a stage, for links both ways."""

    prefect_flow_run_id: str | None = None
    mlflow_run_id: str | None = None
