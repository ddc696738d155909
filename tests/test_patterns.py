"""Every regular expression of the program takes time linear in a text's length, whatever the text."""

import ast
import importlib
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from re import _compiler, _parser  # type: ignore[attr-defined]
from re import _constants as sre  # type: ignore[attr-defined]
from time import thread_time
from typing import Any

import pytest

from schemas.config import EnvironmentSection
from schemas.load import PROJECT_ROOT
from tasks.environments import make_environment
from tasks.environments.registry import BUILTIN
from tasks.environments.tau_bench.action_formats import react_format
from tasks.text.action_format import ActionFormat
from tasks.text.formats import future_regex, verdict_regex

INNER = (
    sre.SUBPATTERN, sre.ATOMIC_GROUP, sre.BRANCH, sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT,
)  # fmt: skip
METHODS = ("match", "fullmatch", "search", "findall", "finditer", "sub", "split")
SCANS = {"match": "match", "fullmatch": "fullmatch"}  # all others try each position, as `search` does
ELSEWHERE = {
    "form.reads or form.regex",  # of the environments: in FORMATS
    "self._form.regex",
    "form.regex",
    "request.regex",  # of the roles: in FORMATS; the text is that of a user's rules
    "_grammar(ctx, row.role)",  # the text is that of a user's demonstrations
}
MADE = {  # modules that compile what their callers give
    "tasks/text/formats",  # into constants of its own
    "tasks/chat/special_tokens",  # a class of characters: in test_special_tokens
    "tasks/chat/tokenizers",  # a few given texts: marks of reasoning and calls
    "tasks/export/view/marks",  # a given text, which stands in a text
    "tasks/environments/checks",  # what environments read as actions: in FORMATS
}
SHORT, LONG = 10_000, 100_000  # characters
GROWTH = 12
TRIES = 5
FLOOR = 0.05  # CPU seconds for LONG characters that no quadratic pattern comes near, however fast its steps
SCREENED = 2_000  # characters of the texts among which the slowest are found
OTHERWISE = re.compile(r"^\s*(?:from re import|import re as|(?:import|from) regex\b)", re.MULTILINE)
LIMIT = 3.0  # CPU seconds after which a pattern has failed

Use = tuple[str, re.Pattern[Any], str]


def uses() -> dict[tuple[str, str], Use]:
    """(expression and flags, method) -> where, compiled pattern and method, over all modules of the program."""
    found: dict[tuple[str, str], Use] = {}
    unknown = set()

    def add(where: str, pattern: re.Pattern[Any], method: str) -> None:
        how = SCANS.get(method, "search")
        found.setdefault((f"{pattern.pattern!r}/{pattern.flags}", how), (where, pattern, how))

    for folder in ("schemas", "storage", "prompts", "tasks", "flows"):
        for path in sorted((PROJECT_ROOT / folder).rglob("*.py")):
            source = path.read_text(encoding="utf-8")
            assert not OTHERWISE.search(source), (
                f"{path}: import re as a whole, so that its patterns are found"
            )
            if "\nimport re\n" not in source:
                continue
            parts = path.relative_to(PROJECT_ROOT).with_suffix("").parts
            names = vars(importlib.import_module(".".join(parts).removesuffix(".__init__")))
            where = "/".join(parts)
            compiled: list[tuple[str, re.Pattern[Any]]] = []  # within functions too
            unresolved = set()  # methods of patterns that only the running program knows
            tree = ast.parse(source)
            functions = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
            within = {part for function in functions for part in ast.walk(function)}
            for node in ast.walk(tree):
                if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                    continue
                of = node.func.value
                direct = isinstance(of, ast.Name) and of.id == "re"
                compiles = direct and node.func.attr == "compile" and node in within
                if not (node.func.attr in METHODS or compiles) or not node.args:
                    continue
                written = node.args[0] if direct else of
                try:
                    value = eval(compile(ast.Expression(written), str(path), "eval"), dict(names))
                except (NameError, AttributeError):
                    if direct:
                        unknown.add(where if compiles else ast.unparse(written))
                    elif node.func.attr != "split":  # of texts, as a rule
                        unresolved.add(node.func.attr)
                    continue
                if compiles:
                    made = eval(compile(ast.Expression(node), str(path), "eval"), dict(names))
                    compiled.append((f"{where}:{node.lineno}", made))
                elif isinstance(value, re.Pattern) or (direct and isinstance(value, str | bytes)):
                    add(f"{where}:{node.lineno}", re.compile(value), node.func.attr)
            named = [
                (f"{where}:{name}", known) for name, value in names.items() for known in patterns_in(value)
            ]
            for place, pattern in (*named, *compiled):
                if all(pattern != known for _, known, _ in found.values()):
                    for method in unresolved or {"search"}:
                        add(place, pattern, method)
    assert unknown <= ELSEWHERE | MADE, (
        f"no pattern is known for {unknown - ELSEWHERE - MADE}; make it a module's constant"
    )
    for where, form in formats():
        add(where, re.compile(form), "fullmatch")
        if where.startswith("textarena"):  # an opponent's move is looked for in its answer
            add(where, re.compile(form), "search")
    return found


def patterns_in(value: Any) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, tuple | list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from patterns_in(part)


def formats() -> Iterator[tuple[str, str]]:
    """What environments read as actions, and the formats of the roles."""
    yield "future", future_regex(200)
    yield "verdict", verdict_regex(200)
    yield "tau_bench", react_format(()).reads or ""
    for name, known in BUILTIN.items():
        if known.missing is None and name != "tau_bench":
            form = make_environment(
                EnvironmentSection(name=name, options=OPTIONS.get(name, {}))
            ).action_format
            yield name, form.reads or form.regex
    for module in ("tau_bench.action_formats", "textarena.moves", "reasoning_gym"):
        for name, value in vars(importlib.import_module(f"tasks.environments.{module}")).items():
            if isinstance(value, ActionFormat):
                yield f"{module}:{name}", value.reads or value.regex


OPTIONS: dict[str, dict[str, Any]] = {"twenty_questions": {"oracle": "facts"}}


def sample(parsed: Any, *, more: bool = False) -> str:
    """A text that a parsed expression matches, or nearly: each repeat once (twice with `more`)."""
    return "".join(_sample(op, value, more) for op, value in parsed)


def _sample(op: Any, value: Any, more: bool) -> str:
    match op:
        case sre.LITERAL:
            return chr(value)
        case sre.NOT_LITERAL | sre.ANY:
            return "a" if value != ord("a") else "b"
        case sre.IN:
            return _of_class(value, more)
        case sre.SUBPATTERN:
            return sample(value[-1], more=more)
        case sre.ATOMIC_GROUP:
            return sample(value, more=more)
        case sre.BRANCH:
            return sample(value[1][-1 if more else 0], more=more)
        case sre.MAX_REPEAT | sre.MIN_REPEAT | sre.POSSESSIVE_REPEAT:
            least, most, body = value
            return sample(body, more=more) * int(min(max(least, 2 if more else 1), most))
    return ""


def _of_class(members: Any, more: bool) -> str:
    """A character of a class, a blank or (with `more`) a line break if it may be."""
    one = _compiler.compile(_parser.SubPattern(_parser.State(), [(sre.IN, members)]))
    known = "".join(
        chr(value[0] if op is sre.RANGE else value) for op, value in members if op in (sre.LITERAL, sre.RANGE)
    )
    return next(c for c in ("\n " if more else " ") + "a1.-" + known if one.match(c))


def attacks(pattern: re.Pattern[Any]) -> list[tuple[str, str, str]]:
    """(prefix, pump, suffix): texts that match a beginning of the pattern, repeat a part of it, and then fail."""
    written = pattern.pattern
    parsed = _parser.parse(written if isinstance(written, str) else written.decode("latin-1"), pattern.flags)
    found: dict[tuple[str, str, str], None] = {}
    for more in (False, True):
        for before, pump in _pumps(list(parsed), "", more):
            for prefix in (before, "", pump):
                for suffix in ("", "\0", "\n"):
                    if pump:
                        found[prefix, pump, suffix] = None
    return list(found)


def _pumps(items: list[Any], before: str, more: bool) -> Iterator[tuple[str, str]]:
    for first in range(len(items)):
        for last in range(first + 1, min(first + 6, len(items)) + 1):
            yield before, sample(items[first:last], more=more)
        op, value = items[first]
        inner: list[Any] = []
        if op in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
            inner = [value[2]]
        elif op is sre.SUBPATTERN:
            inner = [value[-1]]
        elif op is sre.ATOMIC_GROUP:
            inner = [value]
        elif op is sre.BRANCH:
            inner = [
                branch for branch in value[1] if len(branch) > 1 or any(op in INNER for op, _ in branch)
            ][:8]
        for body in inner:
            yield from _pumps(list(body), before, more)
        before += _sample(op, value, more)


@contextmanager
def limited() -> Iterator[None]:
    """Raise TimeoutError after LIMIT seconds of CPU time; matching lets signals through."""

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def seconds(run: Callable[[str], Any], text: str) -> float:
    started = thread_time()
    run(text)
    return thread_time() - started


def runner(pattern: re.Pattern[Any], how: str) -> Callable[[str], Any]:
    if isinstance(pattern.pattern, bytes):
        same = re.compile(pattern.pattern.decode("latin-1"), pattern.flags | re.ASCII)
        return runner(same, how)
    if how == "search":
        return lambda text: sum(1 for _ in pattern.finditer(text))
    return pattern.match if how == "match" else pattern.fullmatch


def text_of(attack: tuple[str, str, str], length: int) -> str:
    prefix, pump, suffix = attack
    return (prefix + pump * (length // len(pump)))[:length] + suffix


def growth(run: Callable[[str], Any], attack: tuple[str, str, str]) -> tuple[float, float] | None:
    """CPU seconds for SHORT and for LONG characters, if they grow too fast in all TRIES; a busy machine spoils one."""
    for _ in range(TRIES):
        short, long = (min(seconds(run, text_of(attack, n)) for _ in range(2)) for n in (SHORT, LONG))
        if long <= max(GROWTH * short, FLOOR):
            return None
    return short, long


@pytest.mark.slow
def test_no_text_takes_a_pattern_more_than_time_linear_in_its_length() -> None:
    slow = []
    for where, pattern, how in uses().values():
        run = runner(pattern, how)
        try:
            with limited():
                tried = sorted(
                    ((seconds(run, text_of(attack, SCREENED)), attack) for attack in attacks(pattern)),
                    reverse=True,
                )
            for _, attack in tried[:3]:
                with limited():
                    grown = growth(run, attack)
                if grown is not None:
                    slow.append(f"{where}: {pattern.pattern!r}: {attack} takes {grown} s")
        except TimeoutError:
            slow.append(f"{where}: {pattern.pattern!r} takes for ever")
    assert not slow, "\n".join(slow)
