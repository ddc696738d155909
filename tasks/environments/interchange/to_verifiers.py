"""Our environments as a taskset of the library `verifiers`, whose id is `nlac_taskset`:

    [env.taskset]
    id = "nlac_taskset"
    environment = "frozen_lake"
    options = {size = 4}

Needs the package verifiers 0.4.
"""

from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf
from pydantic import Field

from schemas.config import EnvironmentSection
from schemas.rows import Split
from tasks.environments import make_environment
from tasks.environments.base import Task, asks_model, closing
from tasks.text.formats import read_action


class NlacTasksetConfig(vf.TasksetConfig):
    """Which of our environments, and its tasks.

    Attributes:
        environment: name of a built-in environment, or an import path.
        options: of the environment.
        split: whose tasks.
        max_steps: cap from outside; a longer episode is cut.
    """

    environment: str
    options: dict[str, Any] = Field(default_factory=dict)
    split: Split = "train"
    max_steps: int = 16


class NlacData(vf.TaskData):
    """A task; the environment speaks first, so there is no prompt."""

    seed: int


class NlacTask(vf.Task[NlacData, vf.State, vf.TaskConfig]):
    """A task of one of our environments; `NlacEnv` gives its reward."""

    @property
    def key(self) -> str:
        return str(self.data.id)


class NlacTaskset(vf.Taskset[NlacTask, NlacTasksetConfig]):
    """The tasks of a split."""

    def load(self) -> Iterator[NlacTask]:
        """One task each.

        Raises:
            ValueError: another model takes part in the environment.
        """
        environment = make_environment(environment_section(self.config))
        name = environment.name
        if asks_model(environment):
            raise ValueError(f"environment: in {name} another model takes part, which is not here")
        form = environment.action_format.description
        system = f"{environment.instructions}\nEnd every reply with a line 'Action: ' and the action, {form}."
        for task in environment.tasks(self.config.split):
            yield NlacTask(
                NlacData(id=task.task_id, name=task.task_id, system_prompt=system, seed=task.seed),
                self.config.task,
            )


def environment_section(config: NlacTasksetConfig) -> EnvironmentSection:
    """The configuration of the environment."""
    return EnvironmentSection(name=config.environment, options=config.options)


class NlacEnvConfig(vf.EnvConfig):
    """One agent plays."""

    agent: vf.AgentConfig = vf.AgentConfig()


class NlacEnv(vf.Env[NlacEnvConfig]):
    """Plays an episode: an observation is a user turn, the agent's reply holds the action."""

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        config = self.taskset.config
        environment = make_environment(environment_section(config))
        data = task.data
        reward, success = 0.0, False
        async with closing(environment), agents.agent.interaction(task) as talk:
            segment = await talk.turn(await environment.reset(Task(data.id, config.split, data.seed)))
            for number in range(1, config.max_steps + 1):
                if segment.terminated:
                    break
                step = await environment.step(
                    read_action(segment.last_reply, environment.action_format).action
                )
                reward, success = reward + step.reward, step.success
                if step.done or step.truncated or number == config.max_steps:
                    break
                segment = await talk.turn(step.observation)
            talk.trace.record_reward("reward", reward, 1.0)
            talk.trace.record_metric("success", float(success))
