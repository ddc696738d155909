"""One way to ask a role for text: engine, adapter, random stream and provenance put together."""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from schemas.config import Config, Player, Role
from schemas.manifest import RoleCost
from schemas.rows import Generation
from tasks.chat.messages import Message, RequestError
from tasks.chat.response_parser import split_reasoning
from tasks.engines.backends import build_engine, find_backend
from tasks.engines.protocol import Adapter, Completion, Engine, Request, Sampling, ScoreRequest, Scores
from tasks.engines.request_journal import RequestJournal
from tasks.foreign_json import whole_text
from tasks.prompting.native_calls import action_text
from tasks.prompting.truncation import Prompt
from tasks.seeding import derive_seed

BASE = "base"
FROZEN = "frozen"  # the use whose parameters play the roles that are `frozen`


@dataclass(frozen=True)
class Answer:
    """What a role answered. Where the engine refused or failed the request, `error` is set and `text` is empty."""

    text: str
    reasoning: str | None
    generation: Generation | None
    completion: Completion | None
    error: str | None = None

    @property
    def status(self) -> str:
        return "ok" if self.error is None else "engine_error"

    @property
    def fault(self) -> str:
        """Why there is no text."""
        if self.error is None and self.reasoning is not None:
            return (
                "the hidden chain of thought filled max_tokens; raise it, or set the role's thinking to false"
            )
        return self.error or "the model wrote nothing"


class RoleClient:
    """Asks the roles of one stage in one iteration. Engines start at first use; `close` ends them.

    Args:
        config: the resolved configuration.
        stage: the stage's name; part of every seed.
        iteration: its iteration.
        adapters: by use, the parameters that a role can be asked to answer with; None is the base model.
        cache_dir: for engines' own caches.
        journal: keeps finished requests; None keeps nothing.
        engines: started ones, by name; others are started at first use.

    Attributes:
        tokens: completion tokens so far.
    """

    def __init__(
        self,
        config: Config,
        stage: str,
        iteration: int,
        adapters: Mapping[str, Adapter | None],
        cache_dir: Path,
        journal: RequestJournal | None = None,
        engines: Mapping[str, Engine] | None = None,
    ) -> None:
        self.config, self.stage, self.iteration = config, stage, iteration
        self.adapters, self.cache_dir = adapters, cache_dir
        self.tokens = 0
        self._spent: dict[str, Counter[str]] = {}
        self._failures: Counter[str] = Counter()
        self._journal = journal
        self._engines = dict(engines or {})

    def seed(self, *purpose: str | int) -> int:
        """The seed of one draw in this stage. An evaluation's seeds are the same in every iteration, so that policies
        are compared pairwise."""
        when = () if self.stage == "evaluation" else (self.iteration,)
        return derive_seed(self.config.seed, self.stage, *when, *purpose)

    def model_version(self, role: Player, adapter: str | None) -> str:
        """What plays a role: the adapter version behind `adapter` (None: the base model), or the fixed model that the
        role's engine names."""
        engine = self.config.engines[self.config.role(role).engine]
        fixed = find_backend(engine).fixed_player(engine)
        if fixed is not None:
            return fixed
        use = self._use(role, adapter)
        played = None if use is None else self.adapters[use]
        return played.version if played else BASE

    async def ask(
        self,
        role: Player,
        prompt: Prompt,
        *,
        adapter: str | None,
        request_key: str,
        sample: int = 0,
        regex: str | None = None,
    ) -> Answer:
        """One completion of a role, or of the environment model.

        Args:
            role: whose engine and sampling parameters.
            prompt: the rendered chat.
            adapter: key of `adapters`: the parameters that answer, if the role's engine has no model of its own;
                None: the base model.
            request_key: what this text is for; with the stage, iteration, template and sample it keys the random
                stream.
            sample: number of the sample where several are drawn under one key.
            regex: the format of the completion, held to where the role is `structured`.

        Returns:
            An answer. A failed request is an answer with an error; other exceptions propagate.
        """
        section = self.config.role(role)
        seed = self.seed(prompt.template, request_key, sample)
        request = Request(
            prompt.messages,
            Sampling(section.temperature, section.top_p, section.max_tokens, seed),
            self._adapter(role, adapter),
            regex if section.structured else None,
            section.thinking,
            prompt.tools,
        )
        key = RequestJournal.key(request_key, sample, request)
        completion = self._journal.completion(key) if self._journal else None
        error, kept = None, completion is not None
        if not kept:
            begun = time.monotonic()
            try:
                completion = await self._engine(section.engine).generate(request)
            except RequestError as failure:
                error = str(failure)
                self._failures[failure.kind] += 1
            self._count(
                role,
                texts=1,
                prompt_tokens=completion.prompt_tokens if completion else 0,
                completion_tokens=completion.completion_tokens if completion else 0,
                seconds=time.monotonic() - begun,
                failed=int(completion is None),
            )
        self.tokens += completion.completion_tokens if completion else 0
        text, reasoning = "", None
        if completion is not None:
            completion = replace(completion, text=whole_text(completion.text))
            reasoning, text = split_reasoning(completion.text)
            text = action_text(text) if prompt.tools else text
            if self._journal and not kept:  # after parsing: what can't be parsed must not stop every retry
                self._journal.put(key, completion)
        generation = Generation(
            engine=section.engine,
            model_version=self.model_version(role, adapter),
            prompt_digest=prompt.digest,
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

    async def scores(
        self,
        role: Role,
        messages: tuple[Message, ...],
        segments: tuple[str, ...],
        *,
        adapter: str,
        request_key: str,
        top_k: int = 0,
        reasoning: str | None = None,
    ) -> Scores | None:
        """Log-probabilities of given text, per segment and token, with the `top_k` most likely tokens at each position.
        It stands behind a hidden chain of thought where `reasoning` gives one.

        Returns:
            None where the role's engine can't give what is asked for.

        Raises:
            RequestError: this text can't be scored.
        """
        name = self.config.role(role).engine
        engine = self._engine(name)
        able = engine.capabilities
        if not able.scoring or (top_k and not able.topk):
            return None
        request = ScoreRequest(messages, segments, self._adapter(role, adapter), top_k, reasoning)
        key = RequestJournal.key(request_key, 0, request)
        scores = self._journal.scores(key) if self._journal else None
        if scores is None:
            begun = time.monotonic()
            scores = await engine.score(request)
            self._count(role, scored=1, seconds=time.monotonic() - begun)
            if self._journal:
                self._journal.put(key, scores)
        return scores

    def faults(self) -> Mapping[str, int]:
        """Requests that were answered by an error, by its kind, and what engines asked again by themselves."""
        found = Counter(self._failures)
        for engine in self._engines.values():
            found.update(getattr(engine, "faults", {}))
        return dict(found)

    @property
    def costs(self) -> dict[str, RoleCost]:
        """What each role's requests cost so far."""
        return {role: RoleCost.model_validate(spent) for role, spent in self._spent.items()}

    def _count(self, role: Player, **spent: float) -> None:
        self._spent.setdefault(role, Counter()).update(spent)

    async def close(self) -> None:
        """Close all engines."""
        self._failures = Counter(self.faults())
        for engine in self._engines.values():
            await engine.close()
        self._engines.clear()

    def _use(self, role: Player, adapter: str | None) -> str | None:
        """The key of `adapters` whose parameters play a role that is asked to answer with those of `adapter`."""
        return FROZEN if adapter is not None and self.config.is_frozen(role) else adapter

    def _adapter(self, role: Player, adapter: str | None) -> Adapter | None:
        """The parameters that answer; none where the engine has a model of its own."""
        trained = self.config.engines[self.config.role(role).engine].model is None
        use = self._use(role, adapter)
        return self.adapters.get(use) if trained and use else None

    def _engine(self, name: str) -> Engine:
        if name not in self._engines:
            self._engines[name] = build_engine(self.config.engines[name], self.config.model, self.cache_dir)
        return self._engines[name]
