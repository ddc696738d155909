"""Who the agent talks to: a model that plays the task's user, or a script for runs without any model."""

from typing import Protocol

from tasks.chat.messages import Message
from tasks.environments.base import Ask
from tasks.environments.tau_bench.package import user_messages

STOP = "###STOP###"
"""What a user says, by the package's prompt, when the conversation is over."""


class User(Protocol):
    """The user of one episode."""

    async def open(self, instruction: str) -> str:
        """The first message; `instruction` says who the user is and wants."""
        ...

    async def answer(self, content: str) -> str:
        """The answer to what the agent says; it holds STOP where the conversation is over."""
        ...


class ModelUser:
    """A model under the package's own prompt for it.

    Args:
        ask: asks the model. Requests are numbered by the length of the conversation.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._conversation = user_messages()

    async def open(self, instruction: str) -> str:
        """As the protocol. Raises EnvironmentModelFailed where the model can't be asked."""
        self._conversation.reset(instruction=instruction)
        return await self._speak()

    async def answer(self, content: str) -> str:
        """As the protocol. Raises EnvironmentModelFailed where the model can't be asked."""
        self._conversation.step(content)
        return await self._speak()

    async def _speak(self) -> str:
        messages: list[Message] = self._conversation.messages
        text = await self._ask(tuple(messages), request_key=f"user/{len(messages)}")
        messages.append(Message(role="assistant", content=text))
        return text


class ScriptedUser:
    """Says the whole instruction at once, agrees to everything, and ends the conversation.

    Args:
        patience: messages of the agent that get an answer; the next one ends the conversation.
    """

    def __init__(self, patience: int) -> None:
        self._patience = patience

    async def open(self, instruction: str) -> str:
        """As the protocol."""
        self._left = self._patience
        return instruction

    async def answer(self, content: str) -> str:
        """As the protocol."""
        self._left -= 1
        return STOP if self._left < 0 else "Yes, please go ahead."
