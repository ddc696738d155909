"""The built-in environments by name: what each is, what it needs, and where its class is."""

from dataclasses import dataclass
from importlib.util import find_spec


@dataclass(frozen=True)
class Builtin:
    """A built-in environment.

    Attributes:
        path: import path of its factory.
        description: one line.
        needs: what it takes beside this program, in words; empty: nothing.
        package: the optional package that it imports.
        install: the command that installs that package.
    """

    path: str
    description: str
    needs: str = ""
    package: str | None = None
    install: str = ""

    @property
    def missing(self) -> str | None:
        """What to do before it can be made; None: nothing."""
        if self.package is None or find_spec(self.package) is not None:
            return None
        return f"needs the package {self.package}, which is not installed; install it with: {self.install}"


BUILTIN = {
    "frozen_lake": Builtin(
        "tasks.environments.frozen_lake:FrozenLake",
        "gymnasium's FrozenLake as compact text, with exact action values",
    ),
    "math": Builtin(
        "tasks.environments.math:Math",
        "mathematics problems with one final answer, checked by math-verify",
        needs="math-verify; a file of problems (a small set ships)",
        package="math_verify",
        install="pip install -e '.[math]'",
    ),
    "reasoning_gym": Builtin(
        "tasks.environments.reasoning_gym:ReasoningGym",
        "any generated single-turn task of reasoning-gym, with its own scorer",
        needs="reasoning-gym (and a C compiler to install it)",
        package="reasoning_gym",
        install="pip install -e '.[reasoning-gym]'",
    ),
    "textarena": Builtin(
        "tasks.environments.textarena:TextArena",
        "a game of TextArena, by its id",
    ),
}
