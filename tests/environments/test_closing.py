"""An environment that holds something gives it back, however its episode ends."""

import asyncio
from collections.abc import Callable

import pytest

from schemas.config import Config
from storage.store import Store
from tasks.environments.base import closing
from tasks.environments.checks import faults_of
from tasks.environments.frozen_lake import FrozenLake
from tests.support.holding import Holding
from tests.support.iterations import Iterate


@pytest.mark.parametrize("algorithm", ["nlac", "self_distillation"])
def test_every_stage_closes_what_it_plays(
    algorithm: str, make_config: Callable[..., Config], store: Store, iterate: Iterate
) -> None:
    before = Holding.closed
    iterate(
        make_config(
            algorithm=algorithm,
            environment={"name": "tests.support.holding:Holding"},
            rollout={"episodes": 4, "max_steps": 2},  # all are cut
        )
    )
    assert Holding.closed - before > 4 and not Holding.held


def test_a_check_of_the_protocol_closes_what_it_opens() -> None:
    class Listing(Holding):
        def legal_actions(self, observation: str) -> list[str]:
            return ["[1]"]

        def validate(self) -> list[str]:
            return []

    before = Holding.closed
    assert faults_of(Listing()) == [] and Holding.closed == before + 1


def test_a_block_that_fails_closes_too_and_an_environment_that_holds_nothing_needs_no_close() -> None:
    async def fail(environment: FrozenLake | Holding) -> None:
        async with closing(environment) as opened:
            await opened.reset(opened.tasks("eval")[0])
            raise LookupError

    for environment in (FrozenLake(maps=1), Holding()):
        with pytest.raises(LookupError):
            asyncio.run(fail(environment))
    assert not Holding.held
