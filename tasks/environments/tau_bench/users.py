"""The user whom the agent talks to: a model, or a script for runs without one."""

from typing import Protocol

from tasks.chat.messages import Message
from tasks.environments.base import Ask
from tasks.environments.tau_bench.package import user_messages

STOP = "###STOP###"
"""The user's text at the end of the conversation, by the package's prompt."""


class User(Protocol):
    """The user of one episode."""

    async def open(self, instruction: str) -> str:
        """The first message; `instruction` says who the user is and what they want."""
        ...

    async def answer(self, content: str) -> str:
        """The answer to the agent's message; it contains STOP at the end of the conversation."""
        ...


class ModelUser:
    """The environment model under the package's own prompt.

    Args:
        ask: sends its requests; their keys count the messages of the conversation.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._conversation = user_messages()

    async def open(self, instruction: str) -> str:
        """As User. Raises EnvironmentModelFailed if the request fails."""
        self._conversation.reset(instruction=instruction)
        return await self._speak()

    async def answer(self, content: str) -> str:
        """As User. Raises EnvironmentModelFailed if the request fails."""
        self._conversation.step(content)
        return await self._speak()

    async def _speak(self) -> str:
        messages: list[Message] = self._conversation.messages
        text = await self._ask(tuple(messages), request_key=f"user/{len(messages)}")
        messages.append(Message(role="assistant", content=text))
        return text


class ScriptedUser:
    """States the whole instruction at once, agrees to everything, and ends the conversation.

    Args:
        patience: number of the agent's messages that get an answer; the next one ends the conversation.
    """

    def __init__(self, patience: int) -> None:
        self._patience = patience

    async def open(self, instruction: str) -> str:
        """As User."""
        self._left = self._patience
        return instruction

    async def answer(self, content: str) -> str:
        """As User."""
        self._left -= 1
        return STOP if self._left < 0 else "Yes, please go ahead."
