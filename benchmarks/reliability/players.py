"""Every environment, played by given texts, an episode after the other."""

from schemas.config import EnvironmentSection
from tasks.environments import make_environment
from tasks.environments.base import AsksModel, Environment
from tasks.environments.frozen_lake import FrozenLake
from tasks.environments.line_walk import LineWalk
from tasks.environments.registry import BUILTIN
from tasks.environments.textarena import TextArena
from tasks.environments.twenty_questions import TwentyQuestions
from tasks.text.formats import read_action

VERIFIED = 500
GAMES = (
    "TowerOfHanoi-v0", "Mastermind-v0", "FrozenLake-v0", "LightsOut-v0", "Minesweeper-v0", "TicTacToe-v0",
    "ConnectFour-v0", "KuhnPoker-v0",
)  # fmt: skip


class Player:
    """Plays completions in an environment, an episode after the other.

    Args:
        environment: any; one that asks a model is answered with the completion before.
        every: it gets one completion in so many.
        turns: most actions of an episode.
    """

    def __init__(self, environment: Environment, every: int = 1, turns: int = 8) -> None:
        self.environment, self.every, self.turns, self.said = environment, every, turns, ""
        self._tasks, self._played, self._left = environment.tasks("train"), 0, 0
        if isinstance(environment, AsksModel):
            environment.connect(self._answer)

    async def _answer(self, messages: object, *, request_key: str, regex: str | None = None) -> str:
        return self.said

    async def play(self, text: str) -> None:
        """One action."""
        if not self._left:
            task = self._tasks[self._played % min(len(self._tasks), 50)]
            self._played += 1
            await self.environment.reset(task)
            self._left = self.turns
        left, self._left = self._left, 0  # an episode that fails is over
        step = await self.environment.step(read_action(text, self.environment.action_format).action)
        step.observation.encode()
        if not (step.done or step.truncated):
            self._left = left - 1


def players() -> dict[str, Player]:
    """Every environment that steps in this process. A game takes milliseconds to open, Sokoban tenths of a second."""
    made = {
        "frozen_lake": Player(FrozenLake()),
        "line_walk": Player(LineWalk()),
        "twenty_questions (facts)": Player(TwentyQuestions(oracle="facts")),
        "twenty_questions (model)": Player(TwentyQuestions()),
        "textarena/GuessTheNumber-v0": Player(TextArena(), every=5),
        "textarena/Sokoban-v0": Player(TextArena("Sokoban-v0"), every=1000),
    }
    return made | {f"textarena/{game}": Player(TextArena(game), every=50) for game in GAMES}


def verifiers() -> dict[str, Player]:
    """Those that ask other processes, a verifier or a browser; without the packages none."""
    made: dict[str, Player] = {}
    if not BUILTIN["miniwob"].missing:
        pages = EnvironmentSection(name="miniwob", options={"pages": ["enter-text", "choose-list"]})
        made["miniwob"] = Player(make_environment(pages), VERIFIED)
    if not BUILTIN["math"].missing:
        made["math"] = Player(
            make_environment(EnvironmentSection(name="math", options={"seconds": 0.5})), VERIFIED
        )
    for task in ("chain_sum", "countdown") if not BUILTIN["reasoning_gym"].missing else ():
        options = {"task": task, "seconds": 0.5}
        made[task] = Player(
            make_environment(EnvironmentSection(name="reasoning_gym", options=options)), VERIFIED
        )
    return made
