"""Collect finished runs into benchmarks/results: the comparison as JSON, with every epoch, and a figure.

    python benchmarks/_collect_runs.py NAME RUN...

writes benchmarks/results/NAME.json and NAME.png. The runs come from `tg-lpe train`.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tg_lpe.files import replacing, write_json
from tg_lpe.report import benchmark_json, comparison_table, read_run
from tg_lpe.report.figures import ENCODING_COLORS
from tg_lpe.training.run_folder import RunFolder
from tg_lpe.training.state import read_metrics

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("runs", nargs="+", metavar="RUN")
    args = parser.parse_args()

    runs = [read_run(path) for path in args.runs]
    print(comparison_table(runs))
    curves = {Path(path).name: read_metrics(RunFolder(path).metrics) for path in args.runs}
    collected = benchmark_json(runs)
    for row in collected["runs"]:  # where the data lay on this machine is nobody's business
        row["command"] = re.sub(r"--data \S+", "--data DIR", row["command"])
    write_json(RESULTS / f"{args.name}.json", {**collected, "curves": curves})

    figure = Figure(figsize=(6.4, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for run, rows in zip(runs, curves.values(), strict=True):
        pe = run.settings["pe"]
        label = f"{pe}, test {run.result['test_mae']:.3f}" if run.result else f"{pe} (unfinished)"
        axes.plot([r["epoch"] for r in rows], [r["val_mae"] for r in rows], color=ENCODING_COLORS[pe], label=label)
    axes.set(xlabel="epoch", ylabel="validation MAE", yscale="log")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter("{x:.2f}")
    axes.yaxis.set_minor_formatter("{x:.2f}")
    axes.grid(alpha=0.25, which="both")
    axes.legend(frameon=False)
    with replacing(RESULTS / f"{args.name}.png") as temporary:
        figure.savefig(temporary, format="png", dpi=110)


if __name__ == "__main__":
    main()
