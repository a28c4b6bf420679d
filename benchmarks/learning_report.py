"""The results of `learning.py` as a table in Markdown and as a picture.

Arms of one seed share everything but the arm, so what counts is each seed's difference to its own
run without a guard. Intervals are 95 % intervals of Student's t over the seeds.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

BASELINE = "no guard"
BUDGETS = ("steps", "tokens")
Result = dict[str, Any]
MARKERS = ("o", "s", "D", "^", "v", "P", "*")
GREYS = ("black", "0.35", "0.65", "black", "0.35", "0.65", "black")
FILLED = ("white", "0.35", "0.65", "black", "white", "white", "black")


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and half the width of its 95 % interval of Student's t.

    Args:
        values: one for each seed.

    Returns:
        NaN for the width where there are fewer than two, and for both where there are none.
    """
    if len(values) < 2:
        return (values[0] if values else math.nan), math.nan
    half = stats.t.ppf(0.975, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return mean(values), float(half)


def accuracies(results: list[Result], budget: str) -> list[float]:
    """Held-out accuracy in percent at a budget, of the runs that reached it."""
    return [100 * result[budget]["accuracy"] for result in results if budget in result]


def differences(results: list[Result], baseline: list[Result], budget: str) -> list[float]:
    """Accuracy minus that of the same seed without a guard, in percentage points."""
    without = {result["seed"]: result for result in baseline if budget in result}
    return [
        100 * (result[budget]["accuracy"] - without[result["seed"]][budget]["accuracy"])
        for result in results
        if budget in result and result["seed"] in without
    ]


def select(results: list[Result], **wanted: Any) -> list[Result]:
    """The results with these values."""
    return [r for r in results if all(r[name] == value for name, value in wanted.items())]


def values_of(results: list[Result], name: str) -> list[Any]:
    """The values of a field, each once, in the order of the results."""
    return list(dict.fromkeys(result[name] for result in results))


def write_report(results: list[Result], steps: int) -> str:
    """The table of each task, with what has to be known to read it.

    Args:
        results: of `learning.run`.
        steps: optimizer steps of the comparison at equal steps.

    Returns:
        Markdown.
    """
    parts = [
        f"Held-out accuracy in percent at a generous limit, after {steps} optimizer steps and at "
        "equal numbers of generated tokens; ± is half a 95 % interval (Student's t over the "
        "seeds). *vs none* is the difference to the run of the same seed without a guard, in "
        "points. Truncated: share of the rollouts of the first and of the last "
        f"steps up to {steps}. Length: tokens of a held-out answer after {steps} steps.",
        "",
    ]
    for task in values_of(results, "task"):
        of_task = select(results, task=task)
        parts += [f"## Task {task}", "", _before(of_task), "", *_overview(of_task), ""]
        for share in sorted(values_of(of_task, "share")):
            parts += [*_table(select(of_task, share=share)), ""]
    versions = sorted({str(result["versions"]) for result in results})
    cpu = sum(result["cpu_seconds"] for result in results)
    parts.append(f"{len(results)} runs, {cpu / 60:.0f} minutes of CPU time; {'; '.join(versions)}")
    return "\n".join(parts) + "\n"


def _before(results: list[Result]) -> str:
    before = {result["seed"]: result["before"] for result in results}
    accuracy = interval([100 * figures["accuracy"] for figures in before.values()])
    length = interval([figures["length"] for figures in before.values()])
    return (
        f"Before the training: {_show(accuracy)} % right, {_show(length)} tokens; "
        f"{len(before)} seeds."
    )


def _overview(results: list[Result]) -> list[str]:
    shares = sorted(values_of(results, "share"))
    cut = [_span([100 * run["cut"] for run in select(results, share=share)]) for share in shares]
    rows = [
        f"| accuracy at equal steps (vs none) | {' | '.join(f'cuts {each} %' for each in cut)} |",
        "|---" + "|---:" * len(shares) + "|",
    ]
    for arm in values_of(results, "arm"):
        cells = [arm]
        for share in shares:
            of_arm = select(results, arm=arm, share=share)
            without = select(results, arm=BASELINE, share=share)
            cell = _show((interval(accuracies(of_arm, "steps"))[0], math.nan))
            if arm != BASELINE:
                cell += f" ({_show(interval(differences(of_arm, without, 'steps')), '+')})"
            cells.append(cell)
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def _table(results: list[Result]) -> list[str]:
    limits, cut = values_of(results, "limit"), [100 * result["cut"] for result in results]
    mixed = [100 * result["mixed_groups"] for result in results]
    rows = [
        f"Limit {_span(limits)} tokens: cuts {_span(cut)} % of the first rollouts, some but not "
        f"all of {_span(mixed)} % of the groups.",
        "",
        f"| limit cuts {results[0]['share']:.0%} | equal steps | vs none | equal tokens | vs none "
        "| at step | truncated, % | length |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    baseline = select(results, arm=BASELINE)
    for arm in values_of(results, "arm"):
        of_arm = select(results, arm=arm)
        cells = [arm]
        for budget in BUDGETS:
            reached = accuracies(of_arm, budget)
            missing = len(of_arm) - len(reached)
            cells.append(_show(interval(reached)) + (f" ({missing} not reached)" * bool(missing)))
            if arm == BASELINE:
                cells.append("")
            else:
                cells.append(_show(interval(differences(of_arm, baseline, budget)), "+"))
        cells.append(_span([run["tokens"]["step"] for run in of_arm if "tokens" in run]))
        shares = [
            f"{100 * mean(result['truncated'][when] for result in of_arm):.0f}" for when in (0, 1)
        ]
        cells.append(" -> ".join(shares))
        cells.append(_show(interval([result["steps"]["length"] for result in of_arm])))
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def _show(pair: tuple[float, float], sign: str = "") -> str:
    value, half = pair
    if math.isnan(value):
        return "-"
    return f"{value:{sign}.1f}" + ("" if math.isnan(half) else f" ± {half:.1f}")


def _span(values: Sequence[float]) -> str:
    if not values:
        return "-"
    low, high = f"{min(values):.0f}", f"{max(values):.0f}"
    return low if low == high else f"{low}-{high}"


def draw(results: list[Result], path: Path, steps: int) -> None:
    """Draw the accuracies with their intervals: a column for each task, a row for each budget.

    Args:
        results: of `learning.run`.
        path: where the PNG file goes.
        steps: optimizer steps of the comparison at equal steps.
    """
    tasks = values_of(results, "task")
    figure = Figure(figsize=(4 + 5 * len(tasks), 8), layout="constrained")
    grid = figure.subplots(2, len(tasks), sharex="col", sharey="col", squeeze=False)
    names = {"steps": f"after {steps} steps", "tokens": "at equal generated tokens"}
    for column, task in enumerate(tasks):
        of_task = select(results, task=task)
        for row, budget in enumerate(BUDGETS):
            axes = grid[row][column]
            _draw_arms(axes, of_task, lambda found, b=budget: interval(accuracies(found, b)))
            axes.set_title(f"task {task}, {names[budget]}")
            axes.set_ylabel("held-out accuracy (%)")
        grid[1][column].set_xlabel("share of the first rollouts that the limit is to cut (%)")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, format="png", dpi=150)


def _draw_arms(
    axes: Axes, results: list[Result], figure: Callable[[list[Result]], tuple[float, float]]
) -> None:
    shares, arms = sorted(values_of(results, "share")), values_of(results, "arm")
    for number, arm in enumerate(arms):
        points = [figure(select(results, arm=arm, share=share)) for share in shares]
        axes.errorbar(
            [place + 0.11 * (number - (len(arms) - 1) / 2) for place in range(len(shares))],
            [value for value, _ in points],
            [0 if math.isnan(half) else half for _, half in points],
            linestyle="none",
            marker=MARKERS[number % len(MARKERS)],
            color=GREYS[number % len(GREYS)],
            markerfacecolor=FILLED[number % len(FILLED)],
            capsize=2,
            elinewidth=1,
            label=arm,
        )
    before = {result["seed"]: 100 * result["before"]["accuracy"] for result in results}
    axes.axhline(mean(before.values()), color="0.6", linestyle="--", label="before the training")
    for place in range(1, len(shares)):
        axes.axvline(place - 0.5, color="0.9")
    axes.set_xticks(range(len(shares)), [f"{100 * share:.0f}" for share in shares])
    axes.set_ylim(0, 100)  # an interval of Student's t knows no bounds
    axes.grid(axis="y", color="0.9")
