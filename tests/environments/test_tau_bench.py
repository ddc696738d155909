"""tau_bench behind the environment protocol: the package's own tools, tasks and databases. Skips where it is absent."""

import asyncio
import importlib.util
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

from schemas.load import PROJECT_ROOT
from tasks.chat.messages import Message
from tasks.environments.base import Step, would_accept
from tasks.environments.splits import SPLITS, played_tasks
from tasks.environments.tau_bench import TauBench, goals
from tasks.environments.tau_bench.calls import write_call
from tasks.environments.tau_bench.database import Snapshot
from tasks.environments.tau_bench.package import INSTALL, load_domain
from tasks.environments.tau_bench.users import STOP

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tau_bench") is None, reason=f"tau_bench is not installed ({INSTALL})"
)
LOGGED = PROJECT_ROOT.parent / "shared" / "data" / "tau_airline_logged.json"


def say(content: str) -> str:
    return write_call("respond", {"content": content})


def play(environment: TauBench, number: int, actions: list[str]) -> list[Step]:
    async def run() -> list[Step]:
        await environment.reset(environment.tasks("eval")[number])
        return [await environment.step(action) for action in actions]

    return asyncio.run(run())


def gold(number: int, domain: str = "retail", split: str = "test") -> list[str]:
    actions = load_domain(domain).tasks[split][number].actions  # type: ignore[arg-type]
    return [write_call(action.name, action.kwargs) for action in actions]


def test_every_task_is_won_by_its_gold_actions() -> None:
    assert TauBench(user="scripted").validate() == []


def test_doing_nothing_has_the_known_score() -> None:
    scores = TauBench(user="scripted").baseline()
    expected = {
        "retail/train": 5 / 500,
        "retail/test": 7 / 115,
        "retail/dev": 1 / 20,
        "airline/test": 19 / 50,
    }
    assert scores == pytest.approx(expected)


def test_splits_are_those_of_the_package() -> None:
    retail, airline = TauBench(), TauBench("airline")
    assert [len(retail.tasks(s)) for s in SPLITS] == [500, 20, 115]
    assert [len(airline.tasks(s)) for s in SPLITS] == [0, 0, 50]
    small = TauBench(train_split="dev", eval_split="train")
    assert [len(small.tasks(s)) for s in SPLITS] == [20, 0, 500]
    assert len(played_tasks(small, "validation")) == 2
    ids = [t.task_id for s in SPLITS for t in retail.tasks(s)]
    assert len(set(ids)) == 635 and ids[0] == "retail/train/000" and ids[-1] == "retail/test/114"


def test_the_tools_stand_in_the_instructions_or_are_offered_as_openai_schemas() -> None:
    react, native = TauBench(actions="react"), TauBench(actions="native")
    policy, _, listed = react.instructions.partition("\n\n# Tools\n")
    assert policy.startswith("# Retail agent policy") and policy == native.instructions
    schemas = json.loads(listed)
    assert len(schemas) == 17 and {s["type"] for s in schemas} == {"function"}
    assert [s for s in schemas if s["function"]["name"] != "respond"] == list(native.tools)
    assert len(native.tools) == 16 and not react.tools


def test_the_digest_is_the_packages_own() -> None:
    snapshot = load_domain("airline").snapshot
    from tau_bench.envs.base import consistent_hash, to_hashable

    database = snapshot.lend()
    assert snapshot.digest(database) == consistent_hash(to_hashable(database))
    database["users"]["mia_li_3668"]["email"] = "x"
    database["reservations"]["HATHAT"] = {"flights": [], "user_id": "mia_li_3668"}
    assert snapshot.digest(database) == consistent_hash(to_hashable(database))


def test_both_halves_of_the_reward_stand_beside_it() -> None:
    env = TauBench(user="scripted", patience=1)
    number = next(
        n for n, task in enumerate(load_domain("retail").tasks["test"]) if task.outputs and task.actions
    )
    told = " and ".join(load_domain("retail").tasks["test"][number].outputs).upper()
    halves = {
        (1.0, 1.0): [*gold(number), say(told), say("bye")],
        (1.0, 0.0): [*gold(number), say("done"), say("bye")],
        (0.0, 0.0): [say("nothing"), say("bye")],
        (0.0, 1.0): [say(f"1,000 {told}"), say("bye")],
    }
    for (database, outputs), actions in halves.items():
        last = play(env, number, actions)[-1]
        assert last.done and last.info == {"database_reward": database, "outputs_reward": outputs}
        assert last.reward == database * outputs and last.success == (last.reward == 1.0)
    asked_nothing = play(env, 0, [*gold(0), say("done"), say("bye")])
    assert asked_nothing[-1].info == {"database_reward": 1.0, "outputs_reward": None}
    assert asked_nothing[-1].reward == 1.0 and all(not s.info and s.reward == 0 for s in asked_nothing[:-1])


def test_a_transfer_to_a_human_ends_the_conversation_as_done() -> None:
    env = TauBench(user="scripted")
    transfer = write_call("transfer_to_human_agents", {"summary": "too hard"})
    (last,) = play(env, 0, [transfer])
    assert last.done and not last.truncated and last.valid and last.reward == 0.0
    assert last.observation.startswith("API output: Transfer successful\nThe conversation is over.")


def test_what_a_tool_refuses_is_seen_and_what_is_no_call_is_invalid() -> None:
    unknown_order = write_call("get_order_details", {"order_id": "#W0"})
    steps = play(
        TauBench(user="scripted"), 0,
        [unknown_order, write_call("get_order_details", {}), write_call("fly", {}), "well, now"],
    )  # fmt: skip
    assert [s.valid for s in steps] == [True, False, False, False] and not any(s.done for s in steps)
    assert steps[0].observation == "API output: Error: order not found"
    assert "missing 1 required positional argument" in steps[1].observation
    assert steps[2].observation == "Error: there is no tool 'fly'"
    assert "not valid JSON" in steps[3].observation


def test_a_calculation_that_would_never_end_is_refused() -> None:
    expressions = ["(10.5 - 3) * 2", "9**9**9**9"]
    steps = play(
        TauBench(user="scripted"), 0, [write_call("calculate", {"expression": e}) for e in expressions]
    )
    assert [s.observation for s in steps] == [
        "API output: 15.0",
        "API output: Error: the expression may not have powers in it",
    ]
    assert [s.valid for s in steps] == [True, False]


def test_what_an_episode_is_made_of_is_named_as_files() -> None:
    files = TauBench("airline").files
    assert {
        "user.py",
        "airline/wiki.md",
        "airline/data/flights.json",
        "airline/tools/calculate.py",
    } <= files.keys()
    assert not any(name.startswith("retail") for name in files) and all(
        path.is_file() for path in files.values()
    )


def test_episodes_that_run_at_once_have_databases_of_their_own() -> None:
    async def together() -> tuple[str, str]:
        one, two = (TauBench(user="scripted") for _ in range(2))
        for env in (one, two):
            await env.reset(env.tasks("eval")[0])
        for action in gold(0):
            await one.step(action)
        look = write_call("get_order_details", {"order_id": "#W2378156"})
        return (await one.step(look)).observation, (await two.step(look)).observation

    changed, untouched = asyncio.run(together())
    assert '"status": "exchange requested"' in changed and '"status": "delivered"' in untouched


def test_the_user_is_a_model_under_the_packages_prompt() -> None:
    asked: list[tuple[str, tuple[Message, ...]]] = []

    async def ask(messages: tuple[Message, ...], *, request_key: str, regex: str | None = None) -> str:
        asked.append((request_key, messages))
        return ("Hi, I want a refund.", f"Thanks. {STOP}")[len(asked) - 1]

    env = TauBench()
    env.connect(ask)
    task = load_domain("retail").tasks["test"][0]
    (last,) = play(env, 0, [say("Which order?")])
    assert last.done and f"Thanks. {STOP}" in last.observation
    (first_item, first), (second_item, second) = asked
    assert [m["role"] for m in first] == ["system", "user"] and task.instruction in first[0]["content"]
    assert second[:2] == first
    assert [m["content"] for m in second[2:]] == ["Hi, I want a refund.", "Which order?"]
    assert [m["role"] for m in second[2:]] == ["assistant", "user"] and first_item != second_item


def test_only_a_scripted_user_makes_an_episode_come_again() -> None:
    by_model, scripted = TauBench(), TauBench(user="scripted")
    assert (by_model.replayable, by_model.needs_model) == (False, True)
    assert (scripted.replayable, scripted.needs_model) == (True, False)
    task = by_model.tasks("train")[0]
    look = write_call("get_order_details", {"order_id": "#W0"})
    for action, accepted in ((look, True), (write_call("get_order_details", {}), False), ("hello", False)):
        for env in (by_model, scripted):
            assert asyncio.run(would_accept(env, task, [], "", action)) == accepted


Replies = Callable[[list[str]], TauBench]


@pytest.fixture
def replies() -> Iterator[Replies]:
    """A native environment of the airline whose user says given lines."""

    def make(lines: list[str]) -> TauBench:
        said = iter(lines)

        async def ask(messages: tuple[Message, ...], *, request_key: str, regex: str | None = None) -> str:
            return next(said)

        env = TauBench("airline", actions="native")
        env.connect(ask)
        return env

    yield make


@pytest.mark.skipif(not LOGGED.exists(), reason="the logged trajectories are not beside this checkout")
def test_logged_conversations_played_again_earn_their_logged_rewards(
    replies: Replies, monkeypatch: pytest.MonkeyPatch
) -> None:
    airline = load_domain("airline")
    # Since they were logged, the package has renamed a field of its users; under its old name digests must agree too.
    from tau_bench.envs.airline.data import load_data
    from tau_bench.envs.base import to_hashable

    tables = load_data()
    for user in tables["users"].values():
        user["address"] = {"province" if k == "state" else k: v for k, v in user["address"].items()}
    older = replace(airline, snapshot=Snapshot(tables, to_hashable))
    for module in ("goals", "environment"):
        monkeypatch.setattr(f"tasks.environments.tau_bench.{module}.load_domain", lambda name: older)
    monkeypatch.setattr(goals, "gold_digest", goals.gold_digest.__wrapped__)

    checked = {"steps": 0, "digests": 0, "outputs": 0}
    for logged in json.loads(LOGGED.read_text()):
        messages = logged["traj"]
        env = replies([m["content"] for m in messages if m["role"] == "user"])
        actions = [
            json.dumps(m["tool_calls"][0]) if m.get("tool_calls") else m["content"]
            for m in messages if m["role"] == "assistant"
        ]  # fmt: skip
        steps = play(env, logged["task_id"], actions)
        answers = [after["content"] for m, after in pairwise(messages) if m["role"] == "assistant"]
        for step, answer in zip(steps, answers, strict=True):
            assert step.valid and step.observation.removeprefix("API output: ").startswith(answer)
        assert steps[-1].reward == logged["reward"]
        checked["steps"] += len(steps)
        judged = (logged["info"].get("reward_info") or {}).get("info", {})
        if "gt_data_hash" in judged:
            assert goals.gold_digest("airline", "test", logged["task_id"]) == judged["gt_data_hash"]
            assert steps[-1].info["database_reward"] == judged["r_actions"]
            checked["digests"] += 1
        if "r_outputs" in judged:
            assert steps[-1].info["outputs_reward"] == judged["r_outputs"]
            checked["outputs"] += 1
    assert checked == {"steps": 851, "digests": 48, "outputs": 9}
