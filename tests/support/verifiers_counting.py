"""A taskset of the library `verifiers` that needs no network: single questions, and a game of several turns."""

from collections.abc import Iterator

import verifiers.v1 as vf

__all__ = ["CountingEnv", "CountingTaskset"]


class CountingConfig(vf.TasksetConfig):
    """Whether an episode has several turns."""

    turns: int = 1


class CountingData(vf.TaskData):
    """A number to start from."""

    start: int


class CountingTask(vf.Task[CountingData, vf.State, vf.TaskConfig]):
    """Say the next number."""

    @vf.reward(weight=0.5)
    async def right(self, trace: vf.Trace) -> float:
        expected = [str(self.data.start + n) for n in range(1, len(trace.assistant_messages) + 1)]
        return float([m.content for m in trace.assistant_messages] == expected)


class CountingTaskset(vf.Taskset[CountingTask, CountingConfig]):
    """Endless."""

    INFINITE = True

    def load(self) -> Iterator[CountingTask]:
        start = 0
        while True:
            prompt = f"What follows {start}?"
            yield CountingTask(
                CountingData(prompt=prompt, system_prompt="Count.", start=start), self.config.task
            )
            start += 1


class CountingEnvConfig(vf.EnvConfig):
    """One agent."""

    agent: vf.AgentConfig = vf.AgentConfig()


class CountingEnv(vf.Env[CountingEnvConfig]):
    """Asks so often; saying "break" breaks it."""

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        async with agents.agent.interaction(task) as talk:
            segment = await talk.turn()
            for _ in range(1, self.taskset.config.turns):
                if segment.last_reply == "break":
                    raise RuntimeError("broken")
                segment = await talk.turn(f"And after {segment.last_reply}?")
            talk.trace.record_reward("game", 0.5, 1.0)
