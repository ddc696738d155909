"""The reward, computed as in the package: 1 if both the database and the outputs are right, else 0.

The database is right if its digest equals that of the initial database after the task's own (gold) actions. The outputs
are right if each occurs in a message to the user.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache

from tasks.environments.tau_bench.calls import Call
from tasks.environments.tau_bench.database import Table
from tasks.environments.tau_bench.package import Domain, DomainName, load_domain


@dataclass(frozen=True)
class Outcome:
    """The two parts of the reward.

    Attributes:
        database: 1 if the database is as the gold actions leave it, else 0.
        outputs: 1 if the user was told everything that the task asks for, else 0; None if it asks for nothing.
    """

    database: float
    outputs: float | None

    @property
    def reward(self) -> float:
        return self.database * (1.0 if self.outputs is None else self.outputs)


def use_tool(domain: Domain, database: Mapping[str, Table], call: Call) -> tuple[str, bool]:
    """Call a tool on the database.

    Returns:
        Its answer, and whether it ran. As in the package, the text of an exception is an answer.
    """
    if call.name == "calculate" and "**" in str(call.arguments.get("expression")):
        # The tool evaluates it as Python, where a tower of powers would block the whole stage.
        return "Error: the expression may not have powers in it", False
    try:
        # Tools store their arguments in the database uncopied, and later calls change them there.
        answer = domain.tools[call.name].invoke(data=database, **deepcopy(call.arguments))
    except Exception as error:  # noqa: BLE001 - the package's tools check few of their arguments
        return f"Error: {error}", False
    return str(answer), True


@cache
def gold_digest(name: DomainName, split: str, index: int) -> str:
    """Digest of the database after a task's gold actions; computed once per process."""
    domain = load_domain(name)
    database = domain.snapshot.lend()
    for action in domain.tasks[split][index].actions:
        if action.name in domain.tools and action.name not in domain.terminal:
            use_tool(domain, database, Call(action.name, action.kwargs))
    return domain.snapshot.digest(database)


def evaluate(
    name: DomainName, split: str, index: int, database: Mapping[str, Table], said: Sequence[str]
) -> Outcome:
    """The reward of a finished episode.

    Args:
        name: the domain.
        split: the package's split.
        index: of the task within the split.
        database: as the episode left it.
        said: the agent's messages to the user.
    """
    domain = load_domain(name)
    wanted = domain.tasks[split][index].outputs
    # Some models write commas in thousands; the package removes them on this side only.
    texts = [text.lower().replace(",", "") for text in said]
    told = all(any(output.lower() in text for text in texts) for output in wanted)
    same = domain.snapshot.digest(database) == gold_digest(name, split, index)
    return Outcome(float(same), float(told) if wanted else None)
