"""The environment: one conversation between the agent, its tools and a user."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

from schemas.rows import Split
from tasks.environments.base import Ask, Step, Task
from tasks.environments.tau_bench.calls import (
    RESPOND,
    RESPOND_SCHEMA,
    Calls,
    Form,
    Unreadable,
    write_call,
)
from tasks.environments.tau_bench.goals import Outcome, evaluate, use_tool
from tasks.environments.tau_bench.package import SIZES, DomainName, load_domain
from tasks.environments.tau_bench.users import STOP, ModelUser, ScriptedUser, User


class TauBench:
    """A domain of tau-bench. An action is a tool call or a message to the user.

    The user or a transfer to a human ends the conversation; both are `done` and bring the reward. The last step's
    `info` holds its two parts, `database_reward` and `outputs_reward`.

    Args:
        domain: retail or airline.
        train_split: the package's split for training; by default `train` if the domain has it, else none.
        eval_split: the package's split for evaluation. The retail domain validates on `dev`, unless one of the two is.
        actions: react (every action is JSON) or native (a tool call as JSON, or text for the user).
        text_chars: with react, most characters of a string argument under structured output, for small models that do
            not end one by themselves; by default no limit.
        user: model (`environment.model` plays the user) or scripted (states the whole instruction, then says yes to
            everything; needs no model).
        patience: number of messages that the scripted user answers with yes; the next one ends the conversation.

    Raises:
        ValueError: no such domain, split, form or user, or the same split for both uses.
        ImportError: the package is not installed; names the command.
    """

    templates: Mapping[str, Path] = {"evaluate": Path(__file__).parent / "templates" / "evaluate.j2"}
    markov = False
    no_op = write_call("transfer_to_human_agents", {"summary": ""})
    """Ends the conversation at once, before any tool call or message."""

    def __init__(
        self,
        domain: DomainName = "retail",
        train_split: str | None = None,
        eval_split: str = "test",
        actions: Form = "react",
        text_chars: int | None = None,
        user: Literal["model", "scripted"] = "model",
        patience: int = 3,
    ) -> None:
        _one_of("domain", domain, get_args(DomainName))
        _one_of("actions", actions, get_args(Form))
        _one_of("user", user, ("model", "scripted"))
        sizes = SIZES[domain]
        for option, split in (("train_split", train_split), ("eval_split", eval_split)):
            if split is not None:
                _one_of(option, split, tuple(sizes))
        train = train_split or ("train" if "train" in sizes else None)
        if train == eval_split:
            raise ValueError(
                f"training and evaluation both play split '{eval_split}'; choose another train_split or eval_split"
            )
        self._name, self._domain = domain, load_domain(domain)
        self.files: Mapping[str, Path] = self._domain.files
        free = "dev" in sizes and "dev" not in (train, eval_split)
        self._splits: dict[Split, str | None] = {
            "train": train,
            "validation": "dev" if free else None,
            "eval": eval_split,
        }
        self._calls = Calls(self._domain.schemas, actions, text_chars)
        self.tools = tuple(self._domain.schemas) if actions == "native" else ()
        self._scripted = ScriptedUser(patience) if user == "scripted" else None
        self._user: User | None = self._scripted
        self.name = f"tau_bench/{domain}"
        self.replayable = self._scripted is not None
        self.needs_model = self._scripted is None
        self.action_format = self._calls.format
        self.instructions = self._domain.policy
        if actions == "react":
            self.instructions += f"\n\n# Tools\n{json.dumps([*self._domain.schemas, RESPOND_SCHEMA])}"

    def connect(self, ask: Ask) -> None:
        """Let the environment model play the user."""
        self._user = ModelUser(ask)

    def tasks(self, split: Split) -> Sequence[Task]:
        upstream = self._splits[split]
        if upstream is None:
            return []
        count = len(self._domain.tasks[upstream])
        return [Task(f"{self._name}/{upstream}/{index:03d}", split, index) for index in range(count)]

    async def reset(self, task: Task) -> str:
        _, self._split, index = task.task_id.split("/")
        self._index = int(index)
        self._database = self._domain.snapshot.lend()
        self._said: list[str] = []
        if self._user is None:
            raise ValueError(
                f"{self.name}: nobody plays the user; call connect first, or set option user to scripted"
            )
        return await self._user.open(self._domain.tasks[self._split][self._index].instruction)

    async def step(self, action: str) -> Step:
        try:
            call = self._calls.read(action)
        except Unreadable as error:
            return Step(f"Error: {error}", valid=False)
        fault = self._calls.fault(call)
        if call.name == RESPOND and fault is None:
            return await self._respond(call.arguments["content"])
        if call.name not in self._domain.tools:
            return Step(f"Error: {fault}", valid=False)
        answer, ran = use_tool(self._domain, self._database, call)
        seen, valid = f"API output: {answer}", ran and fault is None
        return self._end(seen, valid) if call.name in self._domain.terminal else Step(seen, valid=valid)

    async def _respond(self, content: str) -> Step:
        assert self._user is not None  # `reset` checks
        self._said.append(content)
        answer = await self._user.answer(content)
        return self._end(answer) if STOP in answer else Step(answer)

    def _end(self, seen: str, valid: bool = True) -> Step:
        outcome = evaluate(self._name, self._split, self._index, self._database, self._said)
        return Step(
            f"{seen}\n{_verdict(outcome)}",
            reward=outcome.reward,
            done=True,
            success=outcome.reward == 1.0,
            valid=valid,
            info={"database_reward": outcome.database, "outputs_reward": outcome.outputs},
        )

    def accepts(self, action: str) -> bool:
        """Whether an action calls a known tool with arguments that fit its schema."""
        try:
            return self._calls.fault(self._calls.read(action)) is None
        except Unreadable:
            return False

    def validate(self) -> list[str]:
        """Replay the gold actions of every task of both domains; see `validation.replay_gold`."""
        from tasks.environments.tau_bench.validation import replay_gold

        return replay_gold()

    def baseline(self) -> dict[str, float]:
        """Mean reward of doing nothing, by domain and split; see `validation.do_nothing`."""
        from tasks.environments.tau_bench.validation import do_nothing

        return do_nothing()


def _one_of(option: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{option} is '{value}'; it must be one of {', '.join(allowed)}")


def _verdict(outcome: Outcome) -> str:
    """The outcome in words, which the critic's backup reads next to the reward."""
    kept = "as" if outcome.database else "not as"
    text = f"The conversation is over. The database is {kept} the task requires."
    if outcome.outputs is None:
        return text
    return f"{text} The user was {'told' if outcome.outputs else 'not told'} all that the task asks for."
