"""The built-in environments by name: description, requirements, and import path."""

import shutil
from dataclasses import dataclass
from importlib.util import find_spec

from tasks import chromium


@dataclass(frozen=True)
class Builtin:
    """A built-in environment.

    Attributes:
        path: import path of its factory.
        description: one line.
        needs: requirements beyond this program, in words; empty if it has none.
        package: the optional package that it imports.
        install: the command that installs that package.
        programs: that it starts, each by any of its names.
        install_programs: the command that installs them.
    """

    path: str
    description: str
    needs: str = ""
    package: str | None = None
    install: str = ""
    programs: tuple[tuple[str, ...], ...] = ()
    install_programs: str = ""

    @property
    def missing(self) -> str | None:
        """What to install before it can be used; None if nothing is missing."""
        if self.package is not None and find_spec(self.package) is None:
            return (
                f"needs the package {self.package}, which is not installed; install it with: {self.install}"
            )
        absent = [names[0] for names in self.programs if not any(map(shutil.which, names))]
        if not absent:
            return None
        return f"needs {' and '.join(absent)}, not found on PATH; on Debian: {self.install_programs}"


BUILTIN = {
    "frozen_lake": Builtin(
        "tasks.environments.frozen_lake:FrozenLake",
        "gymnasium's FrozenLake as compact text, with exact action values",
    ),
    "line_walk": Builtin(
        "tasks.environments.line_walk:LineWalk",
        "a walk on a line past pits, for a pretrained language model, with exact action values",
    ),
    "logged": Builtin(
        "tasks.environments.logged:Logged",
        "stands for imported conversations; can't be played",
        needs="conversations with rewards (nlac import), and rollout: none",
    ),
    "math": Builtin(
        "tasks.environments.math:Math",
        "mathematics problems with one final answer, checked by math-verify",
        needs="math-verify; a file of problems (a small set ships)",
        package="math_verify",
        install="pip install -e '.[math]'",
    ),
    "miniwob": Builtin(
        "tasks.environments.miniwob:MiniWoB",
        "MiniWoB++: tasks on web pages, in a browser without a network",
        needs="miniwob, Chromium and its driver",
        package="miniwob",
        install="pip install -e '.[miniwob]'",
        programs=chromium.PROGRAMS,
        install_programs=chromium.INSTALL,
    ),
    "reasoning_gym": Builtin(
        "tasks.environments.reasoning_gym:ReasoningGym",
        "any generated single-turn task of reasoning-gym, with its own scorer",
        needs="reasoning-gym (and a C compiler to install it)",
        package="reasoning_gym",
        install="pip install -e '.[reasoning-gym]'",
    ),
    "tau_bench": Builtin(
        "tasks.environments.tau_bench:TauBench",
        "tau-bench: customer service with tools, in a shop or at an airline",
        needs="tau_bench from its repository; a model that plays the user (environment.model)",
        package="tau_bench",
        install='pip install --no-deps "tau_bench @ git+https://github.com/sierra-research/tau-bench"',
    ),
    "textarena": Builtin(
        "tasks.environments.textarena:TextArena",
        "a game of TextArena, by its id",
        needs="for a game of two players, a model that plays the other (environment.model)",
    ),
    "twenty_questions": Builtin(
        "tasks.environments.twenty_questions:TwentyQuestions",
        "20 Questions: find an object by yes-or-no questions",
        needs="a model that answers (environment.model), or the option oracle: facts, which needs none",
    ),
}
