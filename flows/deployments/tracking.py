"""MLflow from the iteration's process, on behalf of its stages.

MLflow takes seconds to import. A stage that runs alone pays for that itself; in an iteration one process does, and
writes what a stage left while the next one is being dispatched.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from prefect.client.schemas.objects import FlowRun
from prefect.utilities.urls import url_for

from flows.deployments.reporting import prompt_texts
from schemas.config import Config
from storage.mlflow.bridge import Bridge
from storage.store import Store

UNTRACKED = ""
"""What a stage is told where MLflow can't be written: not to try it either."""


def run_id(address: str) -> str | None:
    """The id at the end of an MLflow run's address; None for UNTRACKED."""
    return address.rpartition("/")[2] or None


class Tracking:
    """The MLflow runs of one iteration's stages; what is written is written by one thread, in order.

    Args:
        store: the artifact store.
        config: the configuration that the stages are computed with.
        iteration: the iteration.
    """

    def __init__(self, store: Store, config: Config, iteration: int) -> None:
        self._store, self._config, self._iteration = store, config, iteration
        self._bridge = Bridge(store.root)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="mlflow")
        self._put_off: list[Callable[[], None]] = []
        self._written: list[Future[None]] = []

    async def begin(self, stage: str) -> str:
        """Begin a stage's run; gives its address. What was put off is written behind it."""
        address = self._thread.submit(self._begin, stage)
        self._write()
        return await asyncio.wrap_future(address)

    def _begin(self, stage: str) -> str:
        begun = self._bridge.start_stage(self._config.run, self._iteration, stage)
        return (self._bridge.url(begun) if begun else None) or UNTRACKED

    def finish(self, address: str, stage: str, child: FlowRun) -> None:
        """Log a stage that is committed: not now, but while the next one starts."""
        self._put_off.append(lambda: self._finish(address, stage, child))

    def _finish(self, address: str, stage: str, child: FlowRun) -> None:
        committed = self._store.committed(self._config.run, stage, self._iteration)
        if committed is not None and (known := run_id(address)):
            self._bridge.link(known, str(child.id), url_for(child))
            self._bridge.finish_stage(known, committed, self._config, prompt_texts(self._config, committed))

    def fail(self, address: str, reason: str) -> None:
        """Finish a stage's run as failed."""
        self._put_off.append(lambda: self._bridge.fail_stage(run_id(address), reason))

    def _write(self) -> None:
        self._written += [self._thread.submit(work) for work in self._put_off]
        self._put_off.clear()

    async def close(self, *, finished: bool) -> None:
        """Write what is left, and finish the iteration's run.

        Raises:
            StoreError: what a stage has committed can't be read.
        """
        self._put_off.append(
            lambda: self._bridge.finish_iteration(self._config.run, self._iteration, finished)
        )
        self._write()
        await asyncio.to_thread(self._thread.shutdown)
        for written in self._written:
            written.result()
