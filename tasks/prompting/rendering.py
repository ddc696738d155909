"""Prompts: every role's, rendered from its template and fitted into the context window, in one place."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from prompts import render, template_digest
from schemas.config import Config, Role
from schemas.load import find_file
from storage.history import State
from tasks.chat.messages import Message, Tool
from tasks.chat.tokenizers import ChatTokenizer, shared_chat_tokenizer
from tasks.engines.models import resolve_model
from tasks.environments.base import Environment, OffersTools
from tasks.prompting.native_calls import native_chat
from tasks.prompting.truncation import Prompt, Window, fit


@dataclass(frozen=True)
class PromptRenderer:
    """Renders the prompts of one configuration in one environment.

    Attributes:
        config: the resolved configuration.
        environment: gives instructions, action format, tools and templates; no episode is played in it.
    """

    config: Config
    environment: Environment

    @cached_property
    def templates(self) -> dict[str, Path]:
        """Templates that replace shipped ones: the environment's, and above them the configuration's."""
        return {**self.environment.templates, **role_templates(self.config)}

    @cached_property
    def instructions(self) -> str:
        """The environment's instructions, then the tools that it offers."""
        offered = self.environment.tools if isinstance(self.environment, OffersTools) else ()
        return self.environment.instructions + (
            f"\n\n# Tools\n{json.dumps(list(offered))}" if offered else ""
        )

    @property
    def policy_tools(self) -> tuple[Tool, ...]:
        """Tools that the policy calls in its family's own way; none where actions are text."""
        native = self.config.roles.policy.tool_calls == "native"
        return tuple(self.environment.tools) if native and isinstance(self.environment, OffersTools) else ()

    @cached_property
    def tokenizer(self) -> ChatTokenizer:
        """The tokenizer of the model in training."""
        return shared_chat_tokenizer(resolve_model(self.config.model), self.config.model.revision)

    def prompt(
        self,
        role: Role,
        template: str,
        *,
        label: tuple[str, ...] = (),
        trains: bool = False,
        **variables: Any,
    ) -> Prompt:
        """A role's prompt, fitted into the context window (`tasks.prompting.truncation`).

        The prompts of a Markov environment show no history and are not fitted.

        Args:
            role: who answers. The window is that of its engine, less its `max_tokens`.
            template: the template. `policy` is the chat of `policy_messages` and takes `state` alone.
            label: a given completion, by segments, that is scored or trained on. It has to fit too.
            trains: the model in training reads the prompt, whatever engine plays the role.
            variables: of the template.
        """
        tools = self.policy_tools if template == "policy" else ()

        def render_with(known: Mapping[str, Any]) -> tuple[Message, ...]:
            if template == "policy":
                return self.policy_messages(known["state"])
            return self.messages(template, **known)

        if self.environment.markov:
            fitted = Prompt(render_with(variables))
        else:
            section = self.config.role(role)
            own = None if trains else self.config.engines[section.engine].context_length
            window = Window(own or self.config.model.context_length, lambda: self.tokenizer, tools)
            fitted = fit(variables, render_with, lambda shown: window.holds(shown, section.max_tokens, label))
        return replace(
            fitted, template=template, digest=template_digest(template, self.templates), tools=tools
        )

    def messages(self, template: str, **variables: Any) -> tuple[Message, ...]:
        """The system and user messages of a template."""
        known = {
            "instructions": self.instructions,
            "action_description": self.environment.action_format.description,
            **variables,
        }
        blocks = ("system", "user")
        texts = render(template, blocks, known, self.templates)
        return tuple(Message(role=b, content=text) for b, text in zip(blocks, texts, strict=True))

    def policy_messages(self, state: State) -> tuple[Message, ...]:
        """The plain policy prompt: instructions, then the episode as a chat without hidden reasoning. In a Markov
        environment the chat is the last observation alone."""
        env = self.environment
        known = {
            # The chat template lists native tools, so the instructions don't.
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


def role_templates(config: Config) -> Mapping[str, Path]:
    """Template overrides of the configuration's roles. For `correct` it is the template of target corrections."""
    named = {"correct": "correct_target"}
    return {
        named.get(role, role): find_file(section.template)
        for role, section in config.roles
        if section.template is not None
    }
