"""The other player in a game for two: a model that sees what its seat sees."""

import re

from tasks.chat.messages import Message
from tasks.environments.base import ActionFormat, Ask


class Opponent:
    """One episode's opponent. Its chat alternates between what it sees and its moves.

    Args:
        ask: sends its requests.
        form: format of a move; enforced for a structured environment model.
    """

    def __init__(self, ask: Ask, form: ActionFormat) -> None:
        self._ask, self._form = ask, form
        rules = (
            "You are playing a game against another player. Follow its rules and try to win. Answer with your move "
            f"and nothing else: {form.description}."
        )
        self._chat: tuple[Message, ...] = (Message(role="system", content=rules),)
        self._turn = 0

    async def move(self, news: str) -> str:
        """Its next move: the first part of its answer in the format, or the whole answer, which the game then refuses.

        Raises:
            EnvironmentModelFailed: the request failed.
        """
        chat = (*self._chat, Message(role="user", content=news))
        answer = await self._ask(chat, request_key=f"opponent/{self._turn}", regex=self._form.regex)
        self._chat = (*chat, Message(role="assistant", content=answer))
        self._turn += 1
        found = re.search(self._form.regex, answer)
        return found[0] if found else answer
