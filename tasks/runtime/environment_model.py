"""The model that speaks in an environment: an oracle, an opponent, a simulated user.

Its requests go the way of the roles': the same engines, request cache, and random streams keyed by what they are for.
It is no role: it is never trained, and the environment writes its prompts.
"""

import hashlib
import json
from typing import TYPE_CHECKING, Final

from tasks.chat.messages import Message
from tasks.environments.base import EnvironmentModelFailed
from tasks.prompting.truncation import Prompt

if TYPE_CHECKING:
    from tasks.runtime.context import StageContext

ENVIRONMENT_MODEL: Final = "environment_model"


class EnvironmentModel:
    """`tasks.environments.base.Ask` for one episode.

    Args:
        context: of the stage that plays it; provenance of each answer is left in its `spoken`.
        episode: what is played; with the key of a request it keys the random stream.
    """

    def __init__(self, context: "StageContext", episode: str) -> None:
        self._context = context
        self._episode = episode

    async def __call__(
        self, messages: tuple[Message, ...], *, request_key: str, regex: str | None = None
    ) -> str:
        """As the protocol."""
        digest = hashlib.sha256(json.dumps(messages[:1], sort_keys=True).encode()).hexdigest()[:12]
        key = f"{self._episode}/{request_key}"
        answer = await self._context.ask(
            ENVIRONMENT_MODEL,
            ENVIRONMENT_MODEL,
            Prompt(messages),
            adapter=None,
            request_key=key,
            regex=regex,
            digest=digest,
        )
        if answer.error is not None:
            raise EnvironmentModelFailed(f"environment.model: {answer.error}")
        if answer.generation is not None:
            self._context.spoken.setdefault(self._episode, []).append(answer.generation)
        return answer.text
