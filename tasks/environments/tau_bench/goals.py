"""What a task asks for, and the reward, as the package computes it: the database it should lead to, and what the user
should be told.

The reward is 1 if both hold, else 0. The database holds if its digest is that of the initial one after the task's own
(gold) actions; outputs hold if each occurs in something that was said to the user.
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
    """Both halves of the reward.

    Attributes:
        database: 1 if the database is as the gold actions leave it, else 0.
        outputs: 1 if the user was told all that the task asks for, else 0; None: it asks for nothing.
    """

    database: float
    outputs: float | None

    @property
    def reward(self) -> float:
        return self.database * (1.0 if self.outputs is None else self.outputs)


def use_tool(domain: Domain, database: Mapping[str, Table], call: Call) -> tuple[str, bool]:
    """Use a tool on the database.

    Returns:
        What it answers, and whether it ran: what it raises is its answer, as in the package.
    """
    if call.name == "calculate" and "**" in str(call.arguments.get("expression")):
        # It is evaluated as Python, where a tower of powers would hold up the whole stage.
        return "Error: the expression may not have powers in it", False
    try:
        # Tools put their arguments into the database as they are, where later calls change them.
        answer = domain.tools[call.name].invoke(data=database, **deepcopy(call.arguments))
    except Exception as error:  # noqa: BLE001 - the package's tools check few of their arguments
        return f"Error: {error}", False
    return str(answer), True


@cache
def gold_digest(name: DomainName, split: str, index: int) -> str:
    """Digest of the database after a task's gold actions; computed once in a process."""
    domain = load_domain(name)
    database = domain.snapshot.lend()
    for action in domain.tasks[split][index].actions:
        if action.name in domain.tools and action.name not in domain.terminal:
            use_tool(domain, database, Call(action.name, action.kwargs))
    return domain.snapshot.digest(database)


def evaluate(
    name: DomainName, split: str, index: int, database: Mapping[str, Table], said: Sequence[str]
) -> Outcome:
    """The reward of an episode that is over.

    Args:
        name: the domain.
        split: of the package.
        index: of the task within it.
        database: as the episode left it.
        said: what the agent said to the user.
    """
    domain = load_domain(name)
    wanted = domain.tasks[split][index].outputs
    # Thousands are written with commas by some; the package forgives it on this side alone.
    texts = [text.lower().replace(",", "") for text in said]
    told = all(any(output.lower() in text for text in texts) for output in wanted)
    same = domain.snapshot.digest(database) == gold_digest(name, split, index)
    return Outcome(float(same), float(told) if wanted else None)
