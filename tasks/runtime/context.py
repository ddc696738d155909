"""What a stage function is given: configuration, inputs, prompts, and one way to ask a role for text."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from schemas.config import Config
from schemas.rows import Generation
<<<<<<< HEAD
from tasks.chat.messages import Message, RequestError
from tasks.chat.response_parser import split_reasoning
from tasks.engines import build_engine
from tasks.engines.protocol import Completion, Engine, Request, Sampling, ScoreRequest, Scores
=======
>>>>>>> 3f91e79 (Algorithms are values, and a stage is given what it needs)
from tasks.engines.request_journal import RequestJournal
from tasks.environments import check_environment_model, make_environment
from tasks.environments.base import Environment, asks_model
from tasks.prompting.rendering import PromptRenderer
from tasks.runtime.algorithm import Algorithm
from tasks.runtime.environment_model import EnvironmentModel
from tasks.runtime.progress import Progress
from tasks.runtime.role_client import RoleClient
from tasks.runtime.stage import Inputs

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Workspace:
    """Where a stage leaves files.

    Attributes:
        folder: the staging folder; adapters go below it.
        name: of the folder to be committed; it names the adapter versions that the stage makes.
        checkpoint: file from which a killed training stage continues.
    """

    folder: Path
    name: str
    checkpoint: Path


@dataclass
class StageContext:
    """A stage's surroundings, built by `tasks.pipeline.runner`.

    Attributes:
        config: the resolved configuration.
        algorithm: the one that the configuration names.
        stage: the stage's name.
        iteration: its iteration.
        inputs: committed tables and adapters.
        roles: asks roles for text.
        workspace: where files go; None where nothing is committed.
        progress: told of finished items.
        log: the stage's log.
        trained_tokens: tokens that a training stage has trained on.
        spoken: by episode, the provenance of what the environment model has said since it was last taken out.
    """

    config: Config
    algorithm: Algorithm
    stage: str
    iteration: int
    inputs: Inputs
    roles: RoleClient
    workspace: Workspace | None = None
    progress: Progress = field(default_factory=lambda: Progress("stage"))
    log: logging.Logger = field(default_factory=lambda: logging.getLogger("nlac"))
    trained_tokens: int = 0
    spoken: dict[str, list[Generation]] = field(default_factory=dict)

    @cached_property
    def environment(self) -> Environment:
        """The stage's own instance, for formats, instructions and templates."""
        return self.new_environment()

    @cached_property
    def prompts(self) -> PromptRenderer:
        """Renders every role's prompt."""
        return PromptRenderer(self.config, self.environment)

    def new_environment(self, episode: str = "") -> Environment:
        """A fresh environment, for one episode; `episode` keys what the environment model says in it.

        Raises:
            UnusableEnvironment: it can't be made, or its model is missing.
        """
        environment = make_environment(self.config.environment)
        check_environment_model(self.config.environment, environment)
        if asks_model(environment):
            environment.connect(EnvironmentModel(self.roles, self.spoken, episode))
        return environment

<<<<<<< HEAD
    def engine(self, name: str) -> Engine:
        """An engine by its name in the configuration, started at first use."""
        if name not in self._engines:
            self._engines[name] = build_engine(self.config.engines[name], self.config.model, self.cache_dir)
        return self._engines[name]

    def seed(self, *purpose: str | int) -> int:
        """The seed of one draw in this stage. Those of an evaluation are the same in every iteration, so that policies
        are compared pairwise."""
        when = () if self.stage == "evaluation" else (self.iteration,)
        return derive_seed(self.config.seed, self.stage, *when, *purpose)

    def model_version(self, role: Player, adapter: str | None) -> str:
        """What plays a role: the adapter version behind `adapter` (None: the base model), or the fixed model its engine
        names."""
        engine = self.config.engines[self.role(role).engine]
        if engine.backend == "scripted":
            return f"rules:{engine.rules}"
        if engine.model is not None:
            return engine.model
        played = None if adapter is None else self.inputs.adapters[adapter]
        return played.version if played else BASE

    async def ask(
        self,
        role: Player,
        template: str,
        prompt: Prompt,
        *,
        adapter: str | None,
        request_key: str,
        sample: int = 0,
        regex: str | None = None,
        digest: str | None = None,
    ) -> Answer:
        """One completion of a role, or of the environment model.

        Args:
            role: whose engine and sampling parameters.
            template: the template the prompt was rendered from; its digest goes into the row.
            prompt: the chat, and what was left out of it, which is recorded.
            adapter: key of `inputs.adapters`: which version of the model in training plays, if the role's
                engine has no model of its own; None: the base model.
            request_key: what this text is for; with the stage, iteration, template and sample it keys the random
                stream.
            sample: number of the sample where several are drawn for one key.
            regex: the format to hold to, used where the role is configured `structured`.
            digest: of a prompt that was rendered from no template.

        Returns:
            An answer; a failed request is an answer with an error, other exceptions propagate.
        """
        section = self.role(role)
        engine = self.config.engines[section.engine]
        trained = engine.model is None
        seed = self.seed(template, request_key, sample)
        sampling = Sampling(section.temperature, section.top_p, section.max_tokens, seed)
        tools = self.policy_tools if role == "policy" else ()
        request = Request(
            prompt.messages,
            sampling,
            self.inputs.adapters.get(adapter) if trained and adapter else None,
            regex if section.structured else None,
            section.thinking,
            tools,
        )
        key = RequestJournal.key(request_key, sample, request)
        completion = self.journal.completion(key) if self.journal else None
        error = None
        if completion is None:
            try:
                completion = await self.engine(section.engine).generate(request)
            except RequestError as failure:
                error = str(failure)
            else:
                if self.journal:
                    self.journal.put(key, completion)
        self.tokens += completion.completion_tokens if completion else 0
        text, reasoning = "", None
        if completion is not None:
            reasoning, text = split_reasoning(completion.text)
            text = action_text(text) if tools else text
        generation = Generation(
            engine=section.engine,
            model_version=self.model_version(role, adapter),
            prompt_digest=digest or template_digest(template, self.templates),
            temperature=section.temperature,
            top_p=section.top_p,
            max_tokens=section.max_tokens,
            seed=seed,
            prompt_tokens=completion.prompt_tokens if completion else 0,
            completion_tokens=completion.completion_tokens if completion else 0,
            finish_reason=completion.finish_reason if completion else "error",
            dropped_turns=prompt.dropped.turns,
            dropped_chars=prompt.dropped.chars,
        )
        return Answer(text.strip(), reasoning, generation, completion, error)

    async def score(
        self,
        role: Role,
        messages: tuple[Message, ...],
        segments: tuple[str, ...],
        *,
        adapter: str,
        request_key: str,
    ) -> tuple[tuple[float, ...], ...] | None:
        """Log-probabilities of given text, per segment; None where the role's engine can't score."""
        scores = await self.scores(role, messages, segments, adapter=adapter, request_key=request_key)
        return None if scores is None else scores.segments

    async def scores(
        self,
        role: Role,
        messages: tuple[Message, ...],
        segments: tuple[str, ...],
        *,
        adapter: str,
        request_key: str,
        top_k: int = 0,
    ) -> Scores | None:
        """The same with the `top_k` most likely tokens at each position; None where the role's engine can't give
        what is asked for.

        Raises:
            RequestError: this text can't be scored.
        """
        section = self.role(role)
        engine = self.engine(section.engine)
        able = engine.capabilities
        if not able.scoring or (top_k and not able.topk):
            return None
        trained = self.config.engines[section.engine].model is None
        scored = self.inputs.adapters.get(adapter) if trained else None
        request = ScoreRequest(messages, segments, scored, top_k)
        key = RequestJournal.key(request_key, 0, request)
        scores = self.journal.scores(key) if self.journal else None
        if scores is None:
            scores = await engine.score(request)
            if self.journal:
                self.journal.put(key, scores)
        return scores

=======
>>>>>>> 3f91e79 (Algorithms are values, and a stage is given what it needs)
    async def map(self, items: Iterable[T], work: Callable[[T], Awaitable[R]], unit: str) -> list[R]:
        """Work on all items at once, in order, and count progress. Engines bound their own concurrency."""
        listed = list(items)
        self.progress.begin(len(listed), unit)

        async def one(item: T) -> R:
            result = await work(item)
            self.progress.advance()
            return result

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(item)) for item in listed]
        return [task.result() for task in tasks]


def stage_context(
    config: Config,
    algorithm: Algorithm,
    stage: str,
    inputs: Inputs,
    cache_dir: Path,
    *,
    iteration: int = 0,
    journal: RequestJournal | None = None,
) -> StageContext:
    """A context outside the pipeline: nothing is committed or reported.

    Args:
        config: the resolved configuration.
        algorithm: the one that it names.
        stage: the stage's name.
        inputs: committed tables and adapters.
        cache_dir: for engines' own caches.
        iteration: its iteration.
        journal: keeps finished requests; None keeps nothing.
    """
    roles = RoleClient(config, stage, iteration, inputs.adapters, cache_dir, journal)
    return StageContext(config, algorithm, stage, iteration, inputs, roles)
