"""MLflow for the stages of an iteration, written by the iteration's process.

MLflow takes seconds to import. A stage that runs alone imports it itself. In an iteration one process does so for all
stages, and writes what one stage left while the next one starts.
"""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from urllib.parse import urlsplit

from prefect.client.schemas.objects import FlowRun
from prefect.settings import PREFECT_API_URL
from prefect.utilities.urls import url_for

from flows.deployments.reporting import not_fatal
from flows.stack.hosts import LOOPBACK
from prompts import template_text
from schemas.config import Config
from storage.mlflow.bridge import Bridge
from storage.mlflow.server import USUAL_PORT
from storage.store import Committed, Store
from tasks.environments import make_environment
from tasks.prompting.rendering import role_templates

UNTRACKED = ""
"""The address given to a stage where MLflow can't be written: the stage does not try either."""


def run_id(address: str) -> str | None:
    """The id at the end of an MLflow run's address; None for UNTRACKED."""
    return address.rpartition("/")[2] or None


def mlflow_page() -> str:
    """Where `nlac mlflow-ui` is expected: on the host of the stack's server, at its usual port."""
    host = urlsplit(PREFECT_API_URL.value() or "").hostname or LOOPBACK
    return f"http://{host}:{USUAL_PORT}"


class PromptTexts:
    """The texts of the templates that stages render under a configuration, for MLflow's prompt registry.

    Args:
        config: the configuration.
    """

    def __init__(self, config: Config) -> None:
        self._config = config

    @cached_property
    def _replaced(self) -> dict[str, Path]:
        return {**make_environment(self._config.environment).templates, **role_templates(self._config)}

    def __call__(self, committed: Committed) -> Mapping[str, str]:
        """The texts that a committed stage rendered, by template name."""
        names = committed.manifest.fingerprint_inputs.prompts
        return {name: template_text(name, self._replaced) for name in names}


class Tracking:
    """The MLflow runs of one iteration's stages, written in order by one thread.

    Args:
        store: the artifact store.
        config: the configuration that the stages are computed with.
        iteration: the iteration.
    """

    def __init__(self, store: Store, config: Config, iteration: int) -> None:
        self._store, self._config, self._iteration = store, config, iteration
        self._bridge = Bridge(store.root, PromptTexts(config), mlflow_page())
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="mlflow")
        self._put_off: list[Callable[[], object]] = []
        self._written: list[Future[object]] = []

    async def begin(self, stage: str) -> str:
        """Begin a stage's run and give its address. What was put off is written after that."""
        address = self._thread.submit(self._begin, stage)
        self._write()
        return await asyncio.wrap_future(address)

    def _begin(self, stage: str) -> str:
        self._bridge.begin_iteration(self._config.run, self._iteration)
        begun = self._bridge.start_stage(self._config.run, self._iteration, stage)
        return (self._bridge.url(begun) if begun else None) or UNTRACKED

    def finish(self, address: str, stage: str, child: FlowRun) -> None:
        """Put off logging a committed stage until the next one starts."""
        self._put_off.append(lambda: self._finish(address, stage, child))

    def _finish(self, address: str, stage: str, child: FlowRun) -> None:
        committed = self._store.committed(self._config.run, stage, self._iteration)
        if committed is not None and (known := run_id(address)):
            self._bridge.link(known, str(child.id), url_for(child))
            self._bridge.finish_stage(known, committed, self._config)

    def reuse(self, committed: Committed) -> None:
        """Put off logging a reused stage; nothing is written if a finished run describes it."""
        self._put_off.append(lambda: self._bridge.ensure_logged(committed, self._config))

    def fail(self, address: str, reason: str) -> None:
        """Put off finishing a stage's run as failed."""
        self._put_off.append(lambda: self._bridge.fail_stage(run_id(address), reason))

    def note(self, page: str | None) -> None:
        """Put off showing a page of Markdown in the iteration's run."""
        if page is not None:
            self._put_off.append(lambda: self._bridge.note_iteration(self._config.run, self._iteration, page))

    def trace(self) -> None:
        """Put off showing a sample of the iteration's episodes as traces."""
        self._put_off.append(self._trace)

    def _trace(self) -> None:
        count = self._config.tracking.traced_episodes
        with not_fatal("the traces of episodes"):
            from tasks.export.traces import episode_traces  # loads DuckDB

            # Rendered before MLflow's lock is taken, because prompts take a while.
            traces = list(episode_traces(self._store, self._config.run, self._iteration, count))
            self._bridge.log_traces(self._config.run, self._iteration, traces)

    def _write(self) -> None:
        self._written += [self._thread.submit(work) for work in self._put_off]
        self._put_off.clear()

    async def close(self, *, finished: bool) -> None:
        """Write what was put off, and finish the iteration's run.

        Raises:
            StoreError: what a stage committed can't be read.
        """
        self._put_off.append(
            lambda: self._bridge.finish_iteration(self._config.run, self._iteration, finished)
        )
        self._write()
        await asyncio.to_thread(self._thread.shutdown)
        for written in self._written:
            written.result()
