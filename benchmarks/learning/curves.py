"""The pictures of proofs of learning and of the comparison."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

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

    figure, axes = pyplot.subplots(figsize=(8, 4), layout="constrained")
    kinds: dict[str, str] = {}
    for name, run in measured.items():
        kind = name.rpartition("-")[0]
        label = None if kind in kinds else kind.replace("_", " ")
        colour = kinds.setdefault(kind, f"C{len(kinds)}")
        steps, success = [m.environment_steps for m in run], [m.sampled_success for m in run]
        axes.plot(steps, success, color=colour, label=label)
    for number, (name, level) in enumerate((levels or {}).items()):
        axes.axhline(level, color=f"C{len(kinds) + number}", linestyle=":", label=name)
    axes.set(xlabel="environment steps", ylabel="success on held-out maps", ylim=(0, 1.03), title=title)
    figure.legend(loc="outside right center")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


def plot_bands(
    panels: Mapping[str, Mapping[str, Sequence[Sequence[Figures]]]], costs: Mapping[str, str], path: Path
) -> None:
    """Sampled success on held-out tasks against several costs, as far as all seeds of an algorithm have come.

    Args:
        panels: world -> algorithm -> the figures of each seed. A row for each world, a colour for each algorithm: the
            median of the seeds, and a band from the lowest to the highest.
        costs: field of the figures -> its name; a column each. Algorithms take about as many environment steps, but
            differ by orders of magnitude in the others, whose axes are logarithmic.
        path: of the picture.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    size = (4.5 * len(costs), 3.5 * len(panels))
    figure, grid = pyplot.subplots(
        len(panels), len(costs), figsize=size, squeeze=False, sharey=True, layout="constrained"
    )
    colours = {
        name: f"C{n}" for n, name in enumerate(dict.fromkeys(a for runs in panels.values() for a in runs))
    }
    for row, (world, algorithms) in zip(grid, panels.items(), strict=True):
        for axes, (cost, label) in zip(row, costs.items(), strict=True):
            linear = cost == "environment_steps"
            for algorithm, runs in algorithms.items():
                spent = [[getattr(found, cost) for found in run] for run in runs]
                begun = [next((at for at in run if at), 1) for run in spent]  # a logarithmic axis has no 0
                ends = max(begun), min(run[-1] for run in spent)
                at = (np.linspace if linear else np.geomspace)(*ends, 200)
                success = np.array(
                    [
                        np.interp(at, run, [found.sampled_success for found in figures])
                        for run, figures in zip(spent, runs, strict=True)
                    ]
                )
                axes.plot(
                    at,
                    np.median(success, axis=0),
                    color=colours[algorithm],
                    label=algorithm.replace("_", " "),
                )
                axes.fill_between(
                    at, success.min(axis=0), success.max(axis=0), color=colours[algorithm], alpha=0.2
                )
            axes.set(xlabel=label, ylim=(0, 1.03), title=world)
            axes.set_xscale("linear" if linear else "log")
            axes.grid(alpha=0.3)
        row[0].set_ylabel("success on held-out tasks")
    handles = {
        text: line for axes in grid.flat for line, text in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles))
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
