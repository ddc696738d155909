"""The picture of a proof of learning."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.learning.measured_run import Figures


def plot(
    measured: Mapping[str, Sequence[Figures]],
    path: Path,
    title: str,
    levels: Mapping[str, float] | None = None,
) -> None:
    """Sampled success on held-out maps against environment steps.

    Args:
        measured: KIND-SEED -> figures by iteration; a line each, and a colour for each kind.
        path: of the picture.
        title: above it.
        levels: what is no curve: name -> success, a dotted line each.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    kinds: dict[str, str] = {}
    for name, run in measured.items():
        kind = name.rpartition("-")[0]
        label = None if kind in kinds else kind.replace("_", " ")
        colour = kinds.setdefault(kind, f"C{len(kinds)}")
        steps, success = [m.environment_steps for m in run], [m.sampled_success for m in run]
        axes.plot(steps, success, color=colour, label=label)
    for number, (name, level) in enumerate((levels or {}).items()):
        axes.axhline(level, color=f"C{len(kinds) + number}", linestyle=":", label=name)
    axes.set(xlabel="environment steps", ylabel="success on held-out maps", ylim=(0, 1), title=title)
    axes.legend(loc="upper left")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
