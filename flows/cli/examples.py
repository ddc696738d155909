"""Examples of each command: the end of its `--help`, and of its section in docs/commands.md."""

from collections.abc import Mapping

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "up": (
        "nlac up",
        "nlac up --data /scratch/nlac --config configs/cluster/qwen2.5-7b-twenty-questions.yaml",
        "nlac up --listen 10.0.0.1",
        "nlac up --join http://10.0.0.1:4217 --serve training",
    ),
    "down": ("nlac down",),
    "join-training": ("nlac join-training --config mine.yaml",),
    "iterate": (
        "nlac iterate",
        "nlac iterate --run trial --config configs/examples/math_smollm2.yaml",
        "nlac iterate --config nim.yaml --allow-import nim",
    ),
    "import": (
        "nlac import conversations.json --format openai-chat",
        "nlac import calls.jsonl --tools tools.json --run support",
    ),
    "sql": (
        "nlac sql",
        'nlac sql "from learning_curve order by run, iteration"',
        'nlac sql "from lineage where changed limit 3" --format vertical',
        'nlac sql "from transitions" --format parquet --output transitions.parquet',
    ),
    "verify": ("nlac verify", "nlac verify --repair"),
    "gc": ("nlac gc", "nlac gc --yes"),
    "doctor": ("nlac doctor", "nlac doctor --config configs/cluster/qwen2.5-7b-twenty-questions.yaml"),
    "explain": (
        "nlac explain critic-sft 0",
        "nlac explain rollout 2 --run trial --config changed.yaml",
    ),
    "show": (
        "nlac show --changed",
        "nlac show --failed --run trial --format json",
        "nlac show trial/00000/train/00000",
    ),
    "status": ("nlac status", "nlac status --watch", "nlac status --format json"),
    "report": ("nlac report", "nlac report 3 --run trial"),
    "view": ("nlac view", "nlac view --run trial --output trial.html"),
    "play": ("nlac play", "nlac play --run trial --iteration 2 --seed 1"),
    "demonstrate": ("nlac demonstrate --of line_walk data/line_walk.parquet --rows 320",),
    "ceiling": ("nlac ceiling --config configs/proofs/frozen_lake.yaml --rows 768",),
    "mlflow-ui": ("nlac mlflow-ui", "nlac mlflow-ui --port 5000"),
    "config check": (
        "nlac config check",
        "nlac config check configs/cluster/qwq-32b-tau-bench.yaml --elsewhere --gpu 80 --gpus 8",
    ),
    "config show": ("nlac config show configs/examples/logged.yaml",),
    "export policy": ("nlac export policy adapter", "nlac export policy checkpoint --merge --iteration 2"),
    "export critic-sft": ("nlac export critic-sft critic.jsonl",),
    "export policy-distillation": ("nlac export policy-distillation policy.parquet --run trial",),
    "env list": ("nlac env list", "nlac env list --format json"),
    "env validate": (
        "nlac env validate line_walk",
        "nlac env validate nim:Nim --option largest=12",
    ),
    "runs list": ("nlac runs list",),
    "runs compare": ("nlac runs compare first second",),
    "runs copy": ("nlac runs copy default --to s3://bucket/nlac",),
    "runs delete": ("nlac runs delete trial", "nlac runs delete trial --yes"),
}
"""Command, as it is typed after `nlac` -> what to type."""

EXIT_CODES: Mapping[int, str] = {
    0: "done",
    1: "it failed: a stage, a check, a file that can't be written; the message says why and what to do",
    2: "it can't be carried out as given: a configuration, an option or a query is wrong; nothing was created",
    3: "committed data is missing or damaged (sql, show, view, report, runs, verify)",
}


def epilog(command: str) -> str | None:
    """The end of a command's help. rich keeps a line apart where an empty one stands before it."""
    lines = EXAMPLES.get(command)
    return "\n\n".join(("Examples:", *(line.replace("[", r"\[") for line in lines))) if lines else None


def exit_codes() -> str:
    """The end of the help of `nlac` itself."""
    return "\n\n".join(("Exit codes:", *(f"{code}  {meaning}" for code, meaning in EXIT_CODES.items())))
