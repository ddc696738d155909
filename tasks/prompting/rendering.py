"""Prompts: every role's, rendered from its template and fitted into the context window, in one place."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from prompts import render
from schemas.config import Config, Role, RoleSection
from storage.history import State
from tasks.chat.messages import Message, Tool
from tasks.chat.tokenizers import ChatTokenizer, shared_chat_tokenizer
from tasks.engines.models import resolve_model
from tasks.environments.base import Environment, OffersTools
from tasks.prompting.native_calls import native_chat
from tasks.prompting.truncation import Prompt, Window, fit
from tasks.runtime.environment_model import ENVIRONMENT_MODEL

Player = Role | Literal["environment_model"]
"""Who answers a request: a role, or the model that speaks in the environment."""


class Prompting(ABC):
    """The part of a stage's context that renders prompts.

    Attributes:
        config: the resolved configuration.
    """

    config: Config

    @abstractmethod
    def new_environment(self, episode: str = "") -> Environment:
        """A fresh environment, for one episode."""

    @cached_property
    def environment(self) -> Environment:
        """The stage's own instance, for formats, instructions and templates."""
        return self.new_environment()

    @cached_property
    def templates(self) -> dict[str, Path]:
        """Templates that replace shipped ones: the environment's, and above them the configuration's."""
        return {**self.environment.templates, **role_templates(self.config)}

    def messages(self, template: str, **variables: Any) -> tuple[Message, ...]:
        """A role's prompt: the template's system and user blocks."""
        known = {
            "instructions": self.instructions,
            "action_description": self.environment.action_format.description,
            **variables,
        }
        blocks = ("system", "user")
        texts = render(template, blocks, known, self.templates)
        return tuple(Message(role=b, content=text) for b, text in zip(blocks, texts, strict=True))

    @property
    def instructions(self) -> str:
        """The environment's, and behind them the tools that it offers."""
        offered = self.environment.tools if isinstance(self.environment, OffersTools) else ()
        return self.environment.instructions + (
            f"\n\n# Tools\n{json.dumps(list(offered))}" if offered else ""
        )

    @property
    def policy_tools(self) -> tuple[Tool, ...]:
        """Tools that the policy calls in its family's own way; none where actions are text."""
        native = self.config.roles.policy.tool_calls == "native"
        return tuple(self.environment.tools) if native and isinstance(self.environment, OffersTools) else ()

    def prompt(
        self,
        role: Role,
        template: str,
        *,
        label: tuple[str, ...] = (),
        trains: bool = False,
        **variables: Any,
    ) -> Prompt:
        """A role's prompt, fitted into the context window (`tasks.prompting.truncation`). Of a Markov environment,
        whose history no prompt shows, as it is.

        Args:
            role: who answers: its engine's window, less its `max_tokens`.
            template: the template; `policy` is the chat of `policy_messages`, and takes `state` alone.
            label: the completion, by segments, where it is given (scored or trained on): it has to fit too.
            trains: the model in training reads the prompt, whatever engine plays the role.
            variables: of the template.
        """

        def render_with(known: Mapping[str, Any]) -> tuple[Message, ...]:
            return (
                self.policy_messages(known["state"])
                if template == "policy"
                else self.messages(template, **known)
            )

        if self.environment.markov:
            return Prompt(render_with(variables))
        section = self.role(role)
        own = None if trains else self.config.engines[section.engine].context_length
        tools = self.policy_tools if template == "policy" else ()
        window = Window(own or self.config.model.context_length, lambda: self.tokenizer, tools)
        return fit(variables, render_with, lambda messages: window.holds(messages, section.max_tokens, label))

    @cached_property
    def tokenizer(self) -> ChatTokenizer:
        """That of the model in training."""
        return shared_chat_tokenizer(resolve_model(self.config.model), self.config.model.revision)

    def policy_messages(self, state: State) -> tuple[Message, ...]:
        """The plain policy prompt: instructions, then the episode as a chat, hidden reasoning left out. Of a
        Markov environment the last observation alone."""
        env = self.environment
        known = {
            # What the chat template offers need not be said twice.
            "instructions": env.instructions if self.policy_tools else self.instructions,
            "action_description": env.action_format.description,
            "native": bool(self.policy_tools),
        }

        def message(role: str, **variables: str) -> Message:
            (text,) = render("policy", [role], {**known, **variables}, self.templates)
            return Message(role=role, content=text)

        if self.policy_tools:
            return (message("system"), *native_chat(state, env.action_format))
        chat = [message("system")]
        for turn in () if env.markov else state.turns:
            chat += [message("user", observation=turn.observation), message("assistant", text=turn.text)]
        return (*chat, message("user", observation=state.observation))

    def role(self, role: Player) -> RoleSection:
        """A role's section of the configuration, or that of the environment model."""
        if role != ENVIRONMENT_MODEL:
            section: RoleSection = getattr(self.config.roles, role)
            return section
        if self.config.environment.model is None:
            raise ValueError("environment.model is not configured")
        return self.config.environment.model


def role_templates(config: Config) -> Mapping[str, Path]:
    """Template overrides of the configuration's roles (a role's own template; `correct` means that of
    targets)."""
    named = {"correct": "correct_target"}
    return {
        named.get(role, role): Path(section.template)
        for role, section in config.roles
        if section.template is not None
    }
