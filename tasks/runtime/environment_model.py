"""The model that speaks in an environment: an oracle, an opponent, a simulated user.

Its requests take the path of the roles' requests: the same engines, journal and random streams. It is not a role: it is
never trained, and the environment writes its prompts.
"""

import hashlib
import json
from typing import Final

from schemas.rows import Generation
from tasks.chat.messages import Message
from tasks.environments.base import EnvironmentModelFailed
from tasks.prompting.truncation import Prompt
from tasks.runtime.role_client import RoleClient

NAME: Final = "environment_model"


class EnvironmentModel:
    """`tasks.environments.base.Ask` for one episode.

    Args:
        roles: asks the model.
        spoken: takes the provenance of each answer, by episode.
        episode: what is played; with the key of a request it keys the random stream.
    """

    def __init__(self, roles: RoleClient, spoken: dict[str, list[Generation]], episode: str) -> None:
        self._roles, self._spoken, self._episode = roles, spoken, episode

    async def __call__(
        self, messages: tuple[Message, ...], *, request_key: str, regex: str | None = None
    ) -> str:
        """As the protocol."""
        digest = hashlib.sha256(json.dumps(messages[:1], sort_keys=True).encode()).hexdigest()[:12]
        prompt = Prompt(messages, template=NAME, digest=digest)
        key = f"{self._episode}/{request_key}"
        answer = await self._roles.ask(NAME, prompt, adapter=None, request_key=key, regex=regex)
        if answer.error is not None:
            raise EnvironmentModelFailed(f"environment.model: {answer.error}")
        if answer.generation is not None:
            self._spoken.setdefault(self._episode, []).append(answer.generation)
        return answer.text
