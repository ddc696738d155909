"""The scripted roles of the frozen lake, asked as the pipeline asks them: through the environment's templates."""

import math

import pytest

from prompts import render
from storage.history import State
from tasks.chat.messages import Message
from tasks.engines.protocol import Request, Sampling, ScoreRequest
from tasks.engines.scripted import capabilities, load_rules
from tasks.environments.frozen_lake import FrozenLake
from tasks.environments.frozen_lake.roles import backup, evaluator, rules
from tasks.environments.frozen_lake.text import read_future, read_observation
from tasks.environments.frozen_lake.verdict import judged_optimal, optimal_probability
from tasks.prompting.role_prompts import Attempt
from tasks.text.transcript import Ending, Transcript, write_transcript

LAKE = FrozenLake()
# holes at r1c1; straight distance to the goal 6
STATE = State((), "agent r0c0 goal r3c3 / . . / r1c1 none none none none none")
NEXT = "agent r0c1 goal r3c3 . H . / r1c1 none none none none none"


def prompt(template: str, **variables: object) -> tuple[Message, ...]:
    known = {"instructions": LAKE.instructions, "action_description": LAKE.action_format.description}
    system, user = render(template, ("system", "user"), {**known, **variables}, LAKE.templates)
    return (Message(role="system", content=system), Message(role="user", content=user))


def ask(template: str, seed: int = 0, **variables: object) -> str:
    return rules(Request(prompt(template, **variables), Sampling(seed=seed)))


def write_backup(reward: float, following: str, future: str | None) -> str:
    return ask(
        "bootstrap",
        state=STATE,
        action_text="Action: right",
        reward=reward,
        next_observation=following,
        terminal=future is None,
        next_action="Action: down",
        next_future=future,
    )


@pytest.mark.parametrize(
    ("reward", "following", "future", "description"),
    [
        (1.0, "goal", None, "goal now"),
        (0.0, "hole", None, "hole now"),
        (0.0, NEXT, "goal now", "to r0c1 then goal n2"),
        (0.0, NEXT, "hole now", "to r0c1 then hole n2"),
        (0.0, NEXT, "to r0c2 then goal n5", "to r0c1 then goal n6"),
        (0.0, NEXT, "to r0c2 then goal n16", "to r0c1 then unclear"),
        (0.0, NEXT, "to r0c2 then unclear", "to r0c1 then unclear"),
        (0.0, NEXT, "agent n4 to", "to r0c1 then unclear"),
    ],
)
def test_the_backup_is_the_next_cell_and_the_rest_one_step_longer(
    reward: float, following: str, future: str | None, description: str
) -> None:
    assert write_backup(reward, following, future) == f"Future: {description}"


def test_the_backup_that_scores_is_certain_of_what_it_writes() -> None:
    shown = {
        "state": STATE, "action_text": "Action: right", "reward": 0.0, "next_observation": NEXT, "terminal": False,
        "next_action": "Action: down", "next_future": "goal now",
    }  # fmt: skip
    messages = prompt("bootstrap", **shown)
    assert backup(Request(messages, Sampling())) == "Future: to r0c1 then goal n2"
    assert capabilities(backup).scoring
    written, other = (
        backup.score(ScoreRequest(messages, ("Future:", f" {text}"))).segments
        for text in ("to r0c1 then goal n2", "to r0c1 then hole n2")
    )
    assert written == ((0.0,), (0.0,)) and other[0] == (0.0,) and other[1][0] < -20
    with pytest.raises(ValueError, match="descriptions alone"):
        backup.score(ScoreRequest(prompt("correct_target", privileged="", thought=""), ("", "")))


def evaluate(futures: list[str]) -> str:
    return ask("evaluate", state=STATE, action_text="Action: right", futures=futures)


def test_the_evaluator_states_the_mean_value_at_the_environments_discount() -> None:
    futures = ["to r0c1 then goal n3", "to r0c1 then hole n2", "garbled", "to r0c1 then unclear"]
    assert evaluate(futures) == "Optimal: no\nReason: value 0.160"  # 0.8^2 / 4
    assert evaluate(["to r0c1 then goal n6"]) == "Optimal: yes\nReason: value 0.328"


@pytest.mark.parametrize(
    ("futures", "optimal"),
    [
        (["to r0c1 then goal n6"], True),  # as long as the straight way
        (["to r0c1 then goal n7"], False),  # a detour
        (["to r0c1 then goal n6", "hole now"], False),  # half is not most
        (["to r0c1 then goal n6", "to r0c1 then goal n6", "hole now"], True),
        (["to r0c1 then goal n6", "to r0c1 then goal n8"], False),  # the median is 7
        (["garbled"], False),
    ],
)
def test_optimal_means_that_most_futures_take_the_straight_way(futures: list[str], optimal: bool) -> None:
    assert judged_optimal(read_observation(STATE.observation), futures) is optimal
    assert evaluate(futures).startswith(f"Optimal: {'yes' if optimal else 'no'}\n")


DOWN = "agent r1c0 goal r3c3 / . H . r1c1 none none none none none"


def played(*observations: str, ending: Ending = "cut_off") -> str:
    """A rollout's text; what the agent did in it does not matter."""
    actions = ["right"] * (len(observations) - 1)
    return write_transcript(Transcript(observations, actions, ending, float(ending == "success")))


@pytest.mark.parametrize(
    ("text", "future"),
    [
        (played("goal", ending="success"), "goal now"),
        (played("hole", ending="failure"), "hole now"),
        (played(NEXT, NEXT, "goal", ending="success"), "to r0c1 then goal n3"),
        (played(DOWN, "hole", ending="failure"), "to r1c0 then hole n2"),
        (played(DOWN, NEXT, NEXT), "to r1c0 then unclear"),
        (played(DOWN), "to r1c0 then unclear"),  # cut off at the first step
        (played(*[NEXT] * 15, "goal", ending="success"), "to r0c1 then goal n16"),
        (played(*[NEXT] * 16, "goal", ending="success"), "to r0c1 then unclear"),
        ("to r0c1 then goal n3", "to r0c1 then goal n3"),
        (played("lower", "you win", ending="success"), None),  # another environment's
        ("Environment: goal", None),
    ],
)
def test_a_rollout_says_what_its_description_would(text: str, future: str | None) -> None:
    read = read_future(text)
    assert (None if read is None else str(read)) == future


def test_rollouts_are_judged_as_predicted_futures_are() -> None:
    straight = played(*[NEXT] * 5, "goal", ending="success")
    detour = played(*[NEXT] * 7, "goal", ending="success")
    lost, cut = played(DOWN, "hole", ending="failure"), played(NEXT, NEXT)
    assert evaluate([straight]) == evaluate(["to r0c1 then goal n6"]) == "Optimal: yes\nReason: value 0.328"
    assert evaluate([detour]) == "Optimal: no\nReason: value 0.210"  # 0.8^7
    assert evaluate([straight, cut]) == "Optimal: no\nReason: value 0.164"  # half is not most
    assert evaluate([straight, straight, lost]).startswith("Optimal: yes\n")


def scores(
    futures: list[str], verdict: str = " yes", *, template: str = "evaluate", state: State = STATE
) -> float:
    """What the evaluator's engine gives the verdict, after checking that "Optimal:" is certain."""
    messages = prompt(template, state=state, action_text="Action: right", futures=futures, attempts=[])
    first, second = evaluator.score(ScoreRequest(messages, ("Optimal:", verdict))).segments
    assert first == (0.0,)
    return math.exp(second[0])


@pytest.mark.parametrize(
    ("futures", "share"),
    [
        (["to r0c1 then goal n6"], 1.0),  # the straight way
        (["to r0c1 then goal n4"], 1.0),  # claims to be shorter than possible, and is believed no more
        (["to r0c1 then goal n8"], 0.64),  # 0.8^2
        (["to r0c1 then goal n6", "to r0c1 then goal n8", "hole now", "garbled"], 0.41),  # (1 + 0.64) / 4
        (["to r0c1 then unclear", "hole now"], 0.0),
        ([played(*[NEXT] * 5, "goal", ending="success"), played(NEXT)], 0.5),
    ],
)
def test_the_probability_of_yes_is_the_share_of_the_straight_ways_value(
    futures: list[str], share: float
) -> None:
    yes = scores(futures)
    assert yes == pytest.approx(0.001 + 0.998 * share)
    assert yes == pytest.approx(optimal_probability(read_observation(STATE.observation), futures, 0.8))
    assert yes + scores(futures, " no") == pytest.approx(1.0)


def test_where_the_straight_way_is_closed_the_shorter_detour_is_still_the_more_probable() -> None:
    near, far = ["to r0c1 then goal n8"], ["to r0c1 then goal n10"]
    assert evaluate(near).startswith("Optimal: no") and evaluate(far).startswith("Optimal: no")
    assert scores(near) > scores(far) > scores(["hole now"])


def test_the_evaluator_writes_what_the_rules_write_and_scores_nothing_else() -> None:
    asked = Request(
        prompt("evaluate", state=STATE, action_text="Action: up", futures=["goal now"]), Sampling()
    )
    assert evaluator(asked) == rules(asked)
    assert load_rules("tasks.environments.frozen_lake.roles:evaluator") is evaluator
    assert capabilities(evaluator).scoring and not capabilities(rules).scoring
    with pytest.raises(ValueError, match="verdicts alone"):
        scores([], template="refine")
    with pytest.raises(ValueError, match="verdicts alone"):
        scores([], " perhaps")


def tried(**values: float) -> list[Attempt]:
    return [Attempt(f"Action: {action}", False, f"value {value:.3f}") for action, value in values.items()]


def test_the_refiner_takes_an_untried_legal_action_by_its_seed() -> None:
    assert ask("refine", state=STATE, attempts=tried(right=0.2)) == "Action: down"
    inner = State((), "agent r2c2 goal r3c3 . . . . r1c1 none none none none none")
    answers = {ask("refine", seed, state=inner, attempts=tried(right=0.2)) for seed in range(20)}
    assert answers == {"Action: left", "Action: down", "Action: up"}
    assert len({ask("refine", 7, state=inner, attempts=tried(right=0.2)) for _ in range(3)}) == 1


def test_with_every_legal_action_tried_the_refiner_takes_the_best_of_them() -> None:
    attempts = tried(left=0.9, right=0.2, down=0.4)  # left is the wall
    assert ask("refine", state=STATE, attempts=attempts) == "Action: down"


def test_the_choice_is_the_number_of_the_best_legal_action_tried() -> None:
    assert ask("choose", state=STATE, attempts=tried(right=0.2, down=0.4)) == "2"
    assert ask("choose", state=STATE, attempts=tried(right=0.4, down=0.4)) == "1"
    assert ask("choose", state=STATE, attempts=tried(up=0.9, right=0.2, down=0.1)) == "2"


@pytest.mark.parametrize("text", ["goal goal", "right", "Action: right right", "Action: Action:"])
def test_a_text_that_is_no_action_is_neither_chosen_nor_tried(text: str) -> None:
    garbled = Attempt(text, False, "value 0.900")
    assert ask("choose", state=STATE, attempts=[garbled, *tried(down=0.0)]) == "2"
    assert ask("refine", state=STATE, attempts=[garbled, *tried(down=0.0)]) == "Action: right"


def test_the_corrector_returns_the_thought() -> None:
    said = {"privileged": "goal now\nhole now", "thought": "if it is ice, on"}
    assert ask("correct_target", description="goal now", **said) == "if it is ice, on"
    assert ask("correct_thought", state=STATE, **said) == "if it is ice, on"
    assert ask("correct_target", description="goal now", **{**said, "thought": ""}) == ""


def test_a_role_without_rules_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"roles\.policy\.engine"):
        ask("policy", observation=STATE.observation)
    with pytest.raises(ValueError, match=r"states no value: .*roles\.evaluate\.engine"):
        ask("refine", state=STATE, attempts=[Attempt("Action: right", False, "better go down")])


def test_a_template_of_another_environment_is_refused() -> None:
    system, user = prompt("refine", state=STATE, attempts=tried(down=0.0))
    elsewhere = Message(role="user", content=user["content"].replace("state: ", "seen: "))
    with pytest.raises(ValueError, match=r"no line 'state: \.\.\.'; keep the environment's own template"):
        rules(Request((system, elsewhere), Sampling(seed=0)))
