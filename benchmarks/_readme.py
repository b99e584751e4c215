"""Write the tables of the README and of the documentation from the files under benchmarks/results.

    python benchmarks/_readme.py [--check]

A table follows a comment with its file, `<!-- benchmarks/results/NAME.json -->`, and is rewritten as a whole;
`<!-- benchmarks/results/NAME.json, FORM -->` asks for another form or a part of the table, such as "short". With
--check nothing is written; pages that would change are listed, and the exit status is 1 if there are any.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tg_lpe.checkpoints.files import read_json
from tg_lpe.data.units import MEV_IN
from tg_lpe.datasets.molecules import QM9_UNITS
from tg_lpe.training.metrics import METRICS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RESULTS = ROOT / "benchmarks" / "results"
TABLE = re.compile(r"(<!-- benchmarks/results/(\w+)\.json(, \w+)? -->\n)((?:\|.*\n)*)")


def render(text: str) -> str:
    """Return a page with all tables made from the files."""
    return TABLE.sub(lambda match: match[1] + table(match[2], match[3] or ""), text)


def table(name: str, form: str = "") -> str:
    """Return the table of a file as Markdown, whole or in another form; empty if the file does not exist."""
    if not (RESULTS / f"{name}.json").exists():
        return ""
    content = read_json(RESULTS / f"{name}.json")
    head, row = FORMATS.get(name + form, (MOLECULES_HEAD, molecules_row))
    entries = content["results"] if "results" in content else content["rows"]  # the latter of tg-lpe compare
    if row is comparison_row:
        entries = sorted(entries, key=lambda entry: entry["test"]["mean"])
    if name + form not in FORMATS or row is properties_row:
        entries = sorted(entries, key=lambda entry: -entry[figure_of(entry)])
    if name in NODE_COLUMNS and not form:
        entries = nodes_by_figure(entries)
    if name + form == "grid, shares":
        entries = with_shares(entries, content.get("costs", {}))
    elif name == "grid":
        there = [column for column in GRID_COLUMNS if any(entry["column"] == column for entry in entries)]
        head, row = ["encoding", *(GRID_COLUMNS[column] for column in there)], partial(grid_row, there)
        entries = grouped(entries, "row", lambda entry: str(entry["column"]))
    if name == "primal":
        entries = grouped(entries, "attention", sizes_of)
    if name == "encoding_costs":
        entries = [entry for entry in entries if entry["part"] == form.removeprefix(", ")]
        entries = grouped(entries, "what", batch_of) if form == ", pairs" else entries
    if name + form == "nodes_directed, seconds":
        entries = grouped(entries, "data", lambda entry: str(entry["encoding"]))
    rows = [row(entry) for entry in entries]
    lines = [head, ["---"] * len(head), *(line for line in rows if line is not None)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def grouped(entries: list[dict[str, Any]], by: str, of: Callable[[dict[str, Any]], str]) -> list[dict[str, Any]]:
    """Group entries: one dictionary for each value of a key, with the entries of this value by ``of``."""
    return [
        {by: value, **{of(entry): entry for entry in entries if entry[by] == value}}
        for value in dict.fromkeys(entry[by] for entry in entries)
    ]


def mean_and_spread(mean: float, std: float | None, unit: str = "") -> str:
    """Format an error, with the standard deviation over seeds if there are several; energies are in meV."""
    if unit in MEV_IN:
        spread = "" if std is None else f" ± {MEV_IN[unit] * std:.1f}"
        return f"{MEV_IN[unit] * mean:.1f}{spread} meV"
    return f"{mean:.4f}" + ("" if std is None else f" ± {std:.4f}")


SIZES = ["parameters", "seeds", "minutes a run"]
MOLECULES_HEAD = ["encoding", "test MAE", "after relabelling", *SIZES]
PRIMAL_SIZES = [*(f"1 x {10**power:,}" for power in (3, 4, 5, 6)), *(f"128 x {nodes}" for nodes in (10, 25, 50, 200))]

SYSTEMS_HEAD = ["data", "row", "figure", "test", "after relabelling", "epochs of graphs", "published", *SIZES[:2]]


def figure_of(entry: dict[str, Any]) -> str:
    """Return the name of the test error of an encoding of benchmarks/molecules.py."""
    return "test_mae" if "test_mae" in entry else "test_scaled_mae"


def molecules_row(entry: dict[str, Any]) -> list[str]:
    """An encoding of benchmarks/molecules.py: mean and standard deviation over seeds."""
    figure = figure_of(entry)
    errors = [
        mean_and_spread(entry[name], entry[f"{name}_std"], entry.get("unit", ""))
        for name in (figure, f"{figure}_relabelled")
    ]
    label = f"**{entry['row']}**" if entry["row"] == "GramTransformer" else entry["row"]
    return [label, *errors, f"{entry['num_parameters']:,}", str(len(entry["seeds"])), f"{entry['seconds'] / 60:.0f}"]


def properties_row(entry: dict[str, Any]) -> list[str]:
    """An encoding with the error of each of several properties of QM9; energies are in meV."""
    encoding, error, _, *others = molecules_row(entry)
    errors = [
        f"{MEV_IN[QM9_UNITS[name]] * value:.1f}" if QM9_UNITS[name] in MEV_IN else f"{value:.4g}"
        for name, value in entry["test_mae_columns"].items()
    ]
    pair, cell = entry.get("difference"), ""
    if pair is not None and (unit := entry.get("unit")) in MEV_IN:
        cell = f"{MEV_IN[unit] * pair['mean']:+.1f} ± {MEV_IN[unit] * pair['error']:.1f}".replace("-", "−")
    return [encoding, error, *errors, cell, *others]


def systems_row(entry: dict[str, Any]) -> list[str]:
    """A row of an experiment of benchmarks/systems.py, beside the published figure."""
    name = f"test_{entry['metric']}"
    figures = [mean_and_spread(entry[key], entry[f"{key}_std"]) for key in (name, f"{name}_relabelled")]
    budget = f"{entry['epochs']} of {entry['molecules'][0]:,}"
    sizes = [f"{entry['num_parameters']:,}", str(len(entry["seeds"]))]
    metric = METRICS[entry["metric"]].title
    return [entry["experiment"], entry["row"], metric, *figures, budget, entry["published"], *sizes]


MOLECULENET_HEAD = ["data", "model", "figure", "from scratch", "from ZINC", "parameters", "seeds", "minutes"]


def moleculenet_row(entry: dict[str, Any]) -> list[str]:
    """A data set and row of benchmarks/moleculenet.py: mean and standard deviation over seeds."""
    name, starts = f"test_{entry['metric']}", [entry["scratch"], entry["zinc"]]
    figures = ["" if one is None else mean_and_spread(one[name], one[f"{name}_std"]) for one in starts]
    there = next(one for one in starts if one is not None)
    seeds = [str(len(one["seeds"])) for one in starts if one is not None]
    size = "" if there["num_parameters"] is None else f"{there['num_parameters']:,}"
    sizes = [size, " and ".join(dict.fromkeys(seeds)), f"{entry['seconds'] / 60:.0f}"]
    return [entry["set"], entry["row"], METRICS[entry["metric"]].title, *figures, *sizes]


SMALL_TABLES_HEAD = ["table", "rows", "start", "test MAE by seed", "MAE of the constant"]


def small_tables_row(entry: dict[str, Any]) -> list[str]:
    """A table and start of benchmarks/small_tables.py."""
    figures = [", ".join(f"{value:.4g}" for value in entry[key].values()) for key in ("mae", "constant")]
    return [entry["table"], f"{entry['rows']:,}", entry["start"], *figures]


def budget_row(entry: dict[str, Any]) -> list[str]:
    """An encoder and a number of epochs of benchmarks/_budget_figure.py."""
    encoding, *errors = molecules_row({**entry, "num_parameters": 0, "seconds": 0.0})[:3]
    validation = mean_and_spread(entry["val_mae"], entry["val_mae_std"])
    return [encoding, f"{entry['epochs']:,}", validation, *errors, str(len(entry["seeds"]))]


def further_row(entry: dict[str, Any]) -> list[str]:
    """A row of benchmarks/further.py: errors, and the paired difference to the reference on further molecules."""
    further = entry["further"]
    difference = further.get("difference") or {}

    def figure(values: Mapping[str, Any], name: str, sign: str) -> str:
        return f"{values[name]:{sign}.4f} ± {values[f'{name}_error']:.4f}" if name in values else ""

    mean, median = (figure(difference, name, "+") for name in ("mean", "median"))
    spread = f"{difference['seed_error']:.4f}" if difference.get("seed_error") is not None else ""
    test = mean_and_spread(entry["test_mae"], entry["test_mae_std"])
    return [entry["row"], test, figure(further, "mae", ""), mean, spread, median, str(len(entry["seeds"]))]


def validated_row(entry: dict[str, Any]) -> list[str]:
    """A row of benchmarks/molecules.py with the error that chose the epoch."""
    encoding, *errors, parameters, seeds, _ = molecules_row(entry)
    return [encoding, mean_and_spread(entry["val_mae"], entry["val_mae_std"]), *errors, parameters, seeds]


SHORT_NAMES = {
    "random-walk, 9 layers": "random walks",
    "GramTransformer, 9 layers": "`GramTransformer`, trained with the model",
    "gram-k16, frozen, nodes alone, 9 layers": "`LinearTransformerPE(k=16)`",
}


def short_further_row(entry: dict[str, Any]) -> list[str] | None:
    """A row of benchmarks/further.py by its name in the README: the error on further molecules, and the difference."""
    if entry["row"] not in SHORT_NAMES:
        return None
    further, difference = entry["further"], entry["further"]["difference"]
    cell = ""
    if difference is not None:
        error = math.hypot(difference["mean_error"], difference["seed_error"])
        cell = f"{difference['mean']:+.4f} ± {error:.4f}".replace("-", "−")
    return [SHORT_NAMES[entry["row"]], f"{further['mae']:.4f}", cell]


def comparison_row(entry: dict[str, Any]) -> list[str]:
    """A row of `tg-lpe compare`."""

    def difference(reference: str) -> str:
        pair = entry["differences"].get(reference)
        return f"{pair['mean']:+.3f} ± {pair['error']:.3f}".replace("-", "−") if pair else "–"

    encoder = entry["encoder_parameters"]
    return [
        entry["name"],
        mean_and_spread(entry["test"]["mean"], entry["test"]["std"]),
        *(difference(reference) for reference in ("none", "walks")),
        mean_and_spread(entry["relabelled"]["mean"], entry["relabelled"]["std"]),
        f"{1e3 * entry['encode_seconds']:.3f} ms" if entry["encode_seconds"] else "–",
        f"{1e3 * entry['epoch_seconds']:.0f} ms",
        f"{entry['num_parameters'] - encoder:,}" + (f" + {encoder:,}" if encoder else ""),
    ]


def table2_row(entry: dict[str, Any]) -> list[str]:
    """A cell of benchmarks/table2.py beside the paper's; what the paper has not is left empty."""
    paper = entry["paper"]
    theirs = ["", "", ""]
    if paper is not None:
        theirs = [f"{paper['mae']:.3f} ± {paper['std']:.4f}", f"{paper['epochs']:,}", paper["parameters"]]
    errors = [mean_and_spread(entry[name], entry[f"{name}_std"]) for name in ("test_mae", "test_mae_relabelled")]
    inner = entry["encoder_parameters"]
    parameters = f"{entry['num_parameters'] - inner:,}" + (f" + {inner:,}" if inner else "")
    last = [str(len(entry["seeds"])), entry["precision"], f"{entry['seconds'] / 60:.0f}"]
    ours = [*errors, f"{entry['epochs']:,}", parameters, *last]
    return [entry["set"].upper(), entry["row"], *theirs, *ours]


def eigen_pretraining_row(entry: dict[str, Any]) -> list[str]:
    """An encoder of benchmarks/eigen_pretraining.py."""
    losses = [f"{entry[name]:.2f}" for name in ("test_loss", "test_loss_relabelled")]
    return [entry["row"], *losses, f"{entry['num_parameters']:,}", str(entry["epochs"])]


def less_computation_row(entry: dict[str, Any]) -> list[str]:
    """An encoding of benchmarks/less_computation.py."""
    counts = ["" if entry[name] is None else str(entry[name]) for name in ("layers", "k")]
    errors = [mean_and_spread(entry[name], entry[f"{name}_std"]) for name in ("test_mae", "test_mae_relabelled")]
    time = f"{entry['microseconds_a_graph']:.1f}" if "microseconds_a_graph" in entry else ""
    row = "linear transformer" if entry["layers"] else entry["row"]
    return [row, *counts, *errors, time, f"{entry['encoder_parameters']:,}", str(entry["epochs"])]


def throughput_row(entry: dict[str, Any]) -> list[str]:
    """A method of benchmarks/throughput.py."""
    return [entry["what"], f"{entry['graphs_per_second']:,.0f}", f"{entry['ratio']:.1f}"]


def transforms_row(entry: dict[str, Any]) -> list[str] | None:
    """A transform of benchmarks/transforms.py; the file has more sizes and batches."""
    if not entry["graphs"].startswith(("molecules, one", "molecules, encode", "300 nodes", "grid", "random graph")):
        return None
    return [entry["graphs"], entry["what"], f"{1e6 * entry['seconds']:,.0f}", f"{entry['ratio']:.1f}"]


def busy_row(entry: dict[str, Any]) -> list[str]:
    """A transform of benchmarks/busy.py, with one and with two threads."""
    return [entry["what"], *(f"{1e6 * entry[f'{where}_{n}']:,.0f}" for where in ("quiet", "busy") for n in (1, 2))]


def prediction_row(entry: dict[str, Any]) -> list[str]:
    """A stage of benchmarks/prediction.py."""
    peak = "" if entry["peak_mib"] is None else f"{entry['peak_mib']:,.0f}"
    return [entry["what"], f"{entry['molecules']:,}", f"{entry['molecules_per_second']:,.0f}", peak]


def checkpoint_row(entry: dict[str, Any]) -> list[str]:
    """A checkpoint that benchmarks/_score.py tested."""
    errors = [mean_and_spread(entry[f"test_{metric}"], None, entry["unit"]) for metric in ("mae", "rmse")]
    return [entry["checkpoint"], f"{entry['molecules']:,}", *errors]


def training_row(entry: dict[str, Any]) -> list[str]:
    """A model of benchmarks/training.py."""
    share = "" if entry["encoder_share"] is None else f"{100 * entry['encoder_share']:.1f} %"
    cost = [f"{entry['graphs_per_second']:,.0f}", f"{entry['ratio_to_none']:.2f}", share]
    gflop = "" if "gflop" not in entry else f"{entry['gflop']:.2f}"
    return [entry["row"], *cost, gflop, f"{entry['num_parameters']:,}", f"{entry['peak_mib']:,.0f}"]


def spectral_attention_row(entry: dict[str, Any]) -> list[str]:
    """A method of benchmarks/spectral_attention.py."""
    return [entry["what"], entry["method"], f"{entry['graphs_per_second']:,.0f}", f"{entry['ratio']:.1f}"]


def million_row(entry: dict[str, Any]) -> list[str]:
    """A way of benchmarks/million.py; rates are those of one process."""
    rates = [f"{entry[name]:,.0f}" for name in ("seconds", "per_second", "per_cpu_second")]
    ratio = f"{entry['ratio_per_cpu_second']:.2f}"
    return [
        entry["what"],
        f"{entry['molecules']:,.0f}",
        *rates,
        ratio,
        "" if entry.get("peak_mib") is None else f"{entry['peak_mib']:,.0f}",
    ]


def scaling_row(entry: dict[str, Any]) -> list[str]:
    """A graph of benchmarks/scaling.py."""
    counts = [entry["graph"], f"{entry['num_nodes']:,}", f"{entry['num_edges']:,}"]
    times = [f"{entry['build_seconds']:.2f}", f"{entry['seconds']:.3f}", f"{entry['ns_per_edge_and_layer']:.1f}"]
    return [*counts, *times, f"{entry['times_floor']:.1f}", f"{entry['peak_gib']:.1f}"]


def sizes_of(entry: dict[str, Any]) -> str:
    """The graphs of an entry of benchmarks/primal.py."""
    return f"{entry['graphs']} x {entry['nodes_a_graph']:,}"


def primal_row(attention: dict[str, Any]) -> list[str]:
    """An attention of benchmarks/primal.py by the sizes of graphs."""
    found = [attention.get(sizes) for sizes in PRIMAL_SIZES]
    times = [f"{one['forward_us_a_node']:.2f} / {one['training_us_a_node']:.2f}" if one else "" for one in found]
    return [attention["attention"], *times, f"{attention[PRIMAL_SIZES[1]]['saved_bytes_a_node']:,.0f}"]


def pooled_exchange_row(entry: dict[str, Any]) -> list[str]:
    """An attention and a task of benchmarks/pooled_exchange.py."""
    low, high = min(entry["r2_by_seed"]), max(entry["r2_by_seed"])
    return [entry["task"], entry["attention"], f"{entry['r2']:.3f}", f"{low:.3f} to {high:.3f}"]


def eigenvectors_row(entry: dict[str, Any]) -> list[str]:
    """A subspace of benchmarks/eigenvectors.py."""
    values = [f"{entry[name]:.1e}" for name in ("residual", "mean_ritz_value")]
    return [f"{entry['what']}: {entry['effort']:,}", f"{entry['seconds']:.1f}", *values]


def large_graph_row(entry: dict[str, Any]) -> list[str]:
    """A size of benchmarks/large_graph.py."""
    unit = entry["ns_per_edge_layer_filter_probe"]
    counts = [f"{entry['num_nodes']:,}", f"{entry['num_edges']:,}"]
    return [*counts, f"{entry['seconds']:.1f}", f"{unit:.1f}", f"{entry['peak_gib']:.1f}"]


def edges_on_disk_row(entry: dict[str, Any]) -> list[str]:
    """A graph of benchmarks/edges_on_disk.py."""
    counts = [f"{entry['num_nodes']:,}", f"{entry['num_edges']:,}"]
    times = [f"{entry[name]:,.0f}" for name in ("build_cpu_seconds", "cpu_seconds")]
    unit = f"{entry['ns_per_edge_layer_filter_probe']:.1f}"
    memory = "" if entry["memory_cpu_seconds"] is None else f"{entry['memory_cpu_seconds']:,.0f}"
    return [*counts, *times, unit, f"{entry['peak_gib']:.1f}", memory]


def large_graph_error_row(entry: dict[str, Any]) -> list[str] | None:
    """A kind of graph and a method of benchmarks/large_graph_error.py, at 100,000 nodes; the file has other sizes."""
    if entry["num_nodes"] < 90_000:
        return None
    method = f"{entry['probes']}, {entry['num_probes']} probes"
    return [entry["family"], method, *(f"{entry[f'error_{where}']:.3f}" for where in ("nodes", "edges"))]


def layers_row(entry: dict[str, Any]) -> list[str]:
    """A construction of benchmarks/layers.py: layers for each tolerance."""
    where = entry["graphs"] + (f" ({entry['num_graphs']})" if entry["num_graphs"] > 1 else "")
    counts = [
        f"{median:,}" + (f" (≤ {most:,})" if most > median else "") + f", error {error:.1e}"
        for median, most, error in zip(entry["layers_median"], entry["layers_max"], entry["worst_error"], strict=True)
    ]
    return [where, f"{entry['lemma']}: {entry['construction']}", *counts]


def electric_flow_row(entry: dict[str, Any]) -> list[str]:
    """A solver of benchmarks/electric_flow.py."""
    steps = f"{entry['layers']:,}"
    return [entry["what"], steps, f"{entry['residual']:.1e}", f"{entry['seconds']:.2f}", f"{entry['peak_mib']:,.0f}"]


def synthetic_row(entry: dict[str, Any]) -> list[str] | None:
    """A curve of benchmarks/synthetic.py: first and last loss, slope. Single eigenvectors are only in the figure."""
    if "-" not in entry["curve"] and entry["figure"] == 2:
        return None
    means = [math.exp(sum(map(math.log, losses)) / len(losses)) for losses in entry["loss"]]
    low, high = entry["slope_ci"]
    depths = f"{entry['depths'][0]} and {entry['depths'][-1]}"
    return [
        f"{entry['panel'][0]}({entry['panel'][1]})",
        entry["curve"].replace("_", " "),
        f"({entry['equation']})",
        entry["graphs"],
        f"{means[0]:.1e} and {means[-1]:.1e} ({depths})",
        f"{entry['slope']:.2f} [{low:.2f}, {high:.2f}]",
    ]


def k_row(entry: dict[str, Any]) -> list[str] | None:
    """An encoding and a width of benchmarks/k.py. Other widths are only in the figure."""
    if entry["k"] not in (2, 4, 8, 16):
        return None
    shares = [f"{100 * entry[name]:.1f} %" for name in ("unexplained_molecules", "unexplained_random")]
    scores = [f"{entry[name]:.2f}" for name in ("f1_5", "f1_6", "f1_other", "label_mae")]
    return [entry["encoding"], str(entry["k"]), *shares, *scores]


BREC_CATEGORIES = {
    "basic": 60,
    "simple regular": 50,
    "strongly regular": 50,
    "extension": 100,
    "CFI": 100,
    "4-vertex condition": 20,
    "distance regular": 20,
}


def brec_row(entry: dict[str, Any]) -> list[str]:
    """A colouring or network of benchmarks/brec.py; what bounds a network, and where it was wrong."""
    found = [str(entry["counts"].get(category, "")) for category in BREC_CATEGORIES]
    if entry["kind"] == "oracle":
        return [entry["row"], f"**{entry['total']}**", *found, "", ""]
    wrong = f"{entry['beyond']}, {entry['unreliable']}"
    return [f"`{entry['row']}`", f"**{entry['total']}**", *found, entry["bound"], wrong]


def tuples_row(entry: dict[str, Any]) -> list[str]:
    """A set of tuples and an attention of benchmarks/tuples.py."""
    tokens = [f"{entry[name]:,.0f}" for name in ("tokens_mean", "tokens_95", "tokens_max", "tokenized_a_second")]
    times = [f"{entry[name]:.2f}" for name in ("forward_ms", "training_ms")]
    return [entry["row"], *tokens, *times, f"{entry['kept_kib']:,.0f}"]


def positions_share_row(entry: dict[str, Any]) -> list[str] | None:
    """A family and a size of benchmarks/positions.py; the file has smaller ones."""
    if entry["nodes"] < 10_000:
        return None
    times = [f"{entry[name]:.2f}" for name in ("seconds", "eigsh_seconds")]
    return [entry["family"], f"{entry['nodes']:,}", f"{entry['share']:.4f}", f"{entry['layers']:,.0f}", *times]


def positions_communities_row(entry: dict[str, Any]) -> list[str]:
    """An encoding of benchmarks/positions.py."""
    accuracy = "" if entry["accuracy"] is None else f"{entry['accuracy']:.3f}"
    accuracy += "" if entry.get("spread") is None else f" ± {entry['spread']:.3f}"
    return [
        f"{entry['nodes']:,}",
        entry["encoding"],
        accuracy,
        "" if entry["seconds"] is None else f"{entry['seconds']:.2f}",
    ]


def positions_large_row(entry: dict[str, Any]) -> list[str]:
    """A family and a method of benchmarks/positions.py."""
    return [entry["family"], entry["method"], f"{entry['share']:.4f}", f"{entry['seconds']:.1f}"]


NODE_ENCODINGS = (
    *("none", "size", "random walks", "gram-k16", "eigenvectors"),
    *("positions", "positions, edges", "positions, trained", "gram-k8 and positions"),
    *("directed walks", "magnetic", "magnetic walks"),
)
NODE_COLUMNS = {
    "nodes": NODE_ENCODINGS[:9],
    "nodes_directed": ("none", "random walks", "eigenvectors", *NODE_ENCODINGS[9:]),
}


PAIR_BATCHES = ("batches of 32", "batches of 128", "batches of 1,024")


def batch_of(entry: dict[str, Any]) -> str:
    """The batches of a row of pairs of benchmarks/encoding_costs.py."""
    return f"batches of {entry['batch']:,}"


def pairs_row(entry: dict[str, Any]) -> list[str]:
    """An encoding of benchmarks/encoding_costs.py by the batch."""
    return [f"`{entry['what']}`", *(f"{entry[batch]['graphs_per_second']:,.0f}" for batch in PAIR_BATCHES)]


def beforehand_row(entry: dict[str, Any]) -> list[str]:
    """An encoding of benchmarks/encoding_costs.py that is computed once."""
    return [f"`{entry['what']}`", f"{entry['graphs_per_second']:,.0f}"]


def step_row(entry: dict[str, Any]) -> list[str]:
    """A learned encoder of benchmarks/encoding_costs.py."""
    return [f"`{entry['what']}`", f"{1e3 * entry['seconds']:.0f}"]


def attention_row(entry: dict[str, Any]) -> list[str]:
    """A model of benchmarks/encoding_costs.py."""
    return [entry["what"], f"{1e3 * entry['seconds']:.0f}", f"{entry['ratio']:.2f}"]


def encoding_seconds_row(columns: tuple[str, ...], entry: dict[str, Any]) -> list[str]:
    """Seconds that the encodings of a graph take in benchmarks/nodes.py."""
    return [entry["data"], *(f"{entry[name]['encoding_seconds']:.2f}" for name in columns)]


def nodes_by_figure(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The encodings of each task of benchmarks/nodes.py, once for each figure."""
    tasks = grouped(entries, "data", lambda entry: str(entry["encoding"]))
    return [
        {**task, "figure": figure}
        for task in tasks
        for figure in next(task[name] for name in NODE_ENCODINGS if name in task)["runs"][0]["test"]
    ]


def nodes_row(columns: tuple[str, ...], entry: dict[str, Any]) -> list[str]:
    """A task and a figure of benchmarks/nodes.py: mean and standard deviation in hundredths, the best in bold."""
    figure, there = entry["figure"], [entry[name] for name in columns if name in entry]
    best = max(row[figure] for row in there)
    cells = [nodes_cell(entry[name], figure, best) if name in entry else "" for name in columns]
    title = METRICS[figure].title if figure in METRICS else figure
    seeds = sorted({len(row["runs"]) for row in there})
    return [
        entry["data"],
        title,
        *cells,
        " or ".join(map(str, seeds)),
        f"{sum(row['seconds'] for row in there) / len(there):.0f}",
    ]


def nodes_cell(row: dict[str, Any], figure: str, best: float) -> str:
    """One figure of an encoding."""
    spread = "" if row[f"{figure}_std"] is None else f" ± {100 * row[f'{figure}_std']:.1f}"
    text = f"{100 * row[figure]:.1f}{spread}"
    return f"**{text}**" if row[figure] == best else text


GRID_COLUMNS = {
    "zinc12k": "ZINC-12k",
    "qm9, gap": "QM9, gap",
    "molhiv": "molhiv",
    "peptides-func": "peptides",
    "PATTERN": "PATTERN",
    "CLUSTER": "CLUSTER",
    "email": "email",
    "cora, no features": "Cora",
    "email, links": "email, links",
    "cora, links": "Cora, links",
    "squirrel": "squirrel",
    "5-cycles": "5-cycles",
    "6-cycles": "6-cycles",
    "BREC": "BREC",
}


def grid_row(columns: Iterable[str], entry: dict[str, Any]) -> list[str]:
    """An encoding of benchmarks/grid.py on each kind of data; what was not run is empty."""
    return [entry["row"], *(grid_cell(entry[name]) if name in entry else "" for name in columns)]


def grid_cell(cell: dict[str, Any]) -> str:
    """The figure of a cell: of what is better the more in hundredths, of an energy in meV; and + or - against walks."""
    mean, unit = cell["test"]["mean"], QM9_UNITS["gap"] if cell["column"] == "qm9, gap" else ""
    if unit:
        text = f"{MEV_IN[unit] * mean:.0f}"
    else:
        text = f"{100 * mean:.1f}" if cell["direction"] == "max" else f"{mean:.3f}"
    pair = cell["differences"].get("walks")
    if len(cell["seeds"]) > 1 and pair is not None and abs(pair["mean"]) > 3 * (pair["error"] or 0.0):
        text += " +" if (pair["mean"] > 0) == (cell["direction"] == "max") else " −"
    return text if len(cell["seeds"]) > 1 else f"({text})"


GRID_KINDS = {
    "molecules": ("zinc12k", "qm9, gap", "molhiv", "peptides-func"),
    "one network": ("email", "cora, no features", "email, links", "cora, links", "squirrel"),
    "cycles": ("5-cycles", "6-cycles"),
}


def with_shares(entries: list[dict[str, Any]], costs: Mapping[str, float]) -> list[dict[str, Any]]:
    """The encodings of benchmarks/grid.py with the share of the others that each beats by column, best first.

    BREC, where nothing is trained, and encodings of fewer than half of the columns are left out.
    """
    columns = grouped(
        [entry for entry in entries if entry["column"] != "BREC"], "column", lambda cell: str(cell["row"])
    )
    shares: dict[str, dict[str, float]] = {}
    for column in columns:
        cells = {row: cell for row, cell in column.items() if row != "column"}
        for row, cell in cells.items():
            sign = 1 if cell["direction"] == "max" else -1
            gains = [sign * (cell["test"]["mean"] - other["test"]["mean"]) for other in cells.values()]
            beaten = sum(gain > 0 for gain in gains) + (sum(gain == 0 for gain in gains) - 1) / 2
            shares.setdefault(row, {})[column["column"]] = beaten / (len(cells) - 1)
    rows = [
        {"row": row, "shares": values, "seconds": costs.get(row)}
        for row, values in shares.items()
        if 2 * len(values) >= len(columns)
    ]
    return sorted(rows, key=lambda row: -statistics.fmean(row["shares"].values()))


def shares_row(entry: dict[str, Any]) -> list[str]:
    """The mean share over kinds of data, with its standard error, over each kind, and the cost of a graph."""
    shares = entry["shares"]
    error = f" ± {100 * statistics.stdev(shares.values()) / math.sqrt(len(shares)):.0f}" if len(shares) > 1 else ""
    of_kinds = [[shares[name] for name in names if name in shares] for names in GRID_KINDS.values()]
    return [
        entry["row"],
        f"{100 * statistics.fmean(shares.values()):.0f}{error} %",
        *(f"{100 * statistics.fmean(found):.0f} %" if found else "" for found in of_kinds),
        str(len(shares)),
        f"{1e3 * entry['seconds']:.2f} ms" if entry["seconds"] else "",
    ]


FORMATS: dict[str, tuple[list[str], Callable[[dict[str, Any]], list[str] | None]]] = {
    "zinc12k_budget": (["encoding", "epochs", "validation MAE", "test MAE", "after relabelling", "seeds"], budget_row),
    **dict.fromkeys(
        ("zinc_100_budget", "qm9_solubility_100_budget"),
        (["encoding", "validation MAE", "test MAE", "after relabelling", "parameters", "seeds"], validated_row),
    ),
    **{
        f"qm9_{target}_{split}_{epochs}": (
            [
                *["encoding", "test error"],
                *(f"{name}, {'meV' if QM9_UNITS[name] in MEV_IN else QM9_UNITS[name]}" for name in names),
                *["difference to random walks", *SIZES],
            ],
            properties_row,
        )
        for target, names in (("frontier", ("homo", "lumo", "gap")), ("all", tuple(QM9_UNITS)))
        for split in ("random", "scaffold", "standard")
        for epochs in (10, 40)
    },
    **dict.fromkeys(
        [f"zinc12k_{epochs}_further" for epochs in (15, 40, 100, 300)],
        (
            [
                *["encoding", "official test MAE", "MAE, 23,413 further molecules", "mean difference to random walks"],
                *["its error over seeds", "median difference", "seeds"],
            ],
            further_row,
        ),
    ),
    "esol_compare": (
        [
            *["encoding", "test MAE", "against none", "against walks", "after relabelling"],
            *["encoding a graph", "an epoch", "model + encoder"],
        ],
        comparison_row,
    ),
    "moleculenet": (MOLECULENET_HEAD, moleculenet_row),
    "small_tables": (SMALL_TABLES_HEAD, small_tables_row),
    **dict.fromkeys(("primphormer", "san"), (SYSTEMS_HEAD, systems_row)),
    "synthetic": (["panel", "loss", "eq.", "graphs", "loss (layers)", "slope of ln loss, 95 %"], synthetic_row),
    "table2": (
        [
            *["data", "encoding", "paper's MAE", "epochs", "parameters"],
            *["test MAE", "after relabelling", "epochs", "parameters", "seeds", "precision", "minutes"],
        ],
        table2_row,
    ),
    "eigen_pretraining": (
        ["encoder", "test loss, of 12", "after relabelling", "parameters", "epochs"],
        eigen_pretraining_row,
    ),
    "less_computation": (
        [
            *["encoding", "layers", "columns", "test MAE", "after relabelling", "µs a graph"],
            *["parameters of the encoder", "epochs"],
        ],
        less_computation_row,
    ),
    "brec": (
        [
            *["", "all, 400", *(f"{category}, {number}" for category, number in BREC_CATEGORIES.items())],
            *["at most", "beyond, unreliable"],
        ],
        brec_row,
    ),
    "throughput": (["method", "graphs/s", "times AddLaplacianEigenvectorPE"], throughput_row),
    "transforms": (["graphs", "transform", "µs a graph", "times PyG"], transforms_row),
    "busy": (["µs a graph of 23 nodes", "idle, 1 thread", "2 threads", "busy, 1 thread", "2 threads"], busy_row),
    "qm9_gap_checkpoint": (["checkpoint", "test molecules", "MAE", "RMSE"], checkpoint_row),
    "prediction": (["stage", "molecules", "molecules/s", "peak MiB"], prediction_row),
    "training": (
        ["model", "graphs/s", "time relative to none", "encoder's share", "GFLOP forwards", "parameters", "peak MiB"],
        training_row,
    ),
    "spectral_attention": (["", "method", "graphs/s", "times the first"], spectral_attention_row),
    "edges_on_disk": (
        [
            "nodes",
            "edges",
            "CPU seconds to sort",
            "to encode",
            "ns each, layer, filter, probe",
            "peak GiB",
            "in memory",
        ],
        edges_on_disk_row,
    ),
    "million": (
        ["", "molecules a process", "seconds", "a second", "a second of CPU time", "times the first", "peak MiB"],
        million_row,
    ),
    "scaling": (
        ["graph", "nodes", "edges", "seconds to build", "to encode", "ns an edge and layer", "times floor", "peak GiB"],
        scaling_row,
    ),
    "primal": (["attention", *PRIMAL_SIZES, f"bytes kept, {PRIMAL_SIZES[1]}"], primal_row),
    "tuples": (
        [
            *["tuples, attention", "tokens, mean", "95 %", "largest", "molecules tokenized/s"],
            *["ms a molecule forward", "in training", "KiB kept"],
        ],
        tuples_row,
    ),
    "pooled_exchange": (["task", "attention", "R²", "over seeds"], pooled_exchange_row),
    "eigenvectors": (["method", "seconds", "residual", "mean Ritz value"], eigenvectors_row),
    "layers": (["graphs", "lemma", "tolerance 1e-2", "1e-4", "1e-6"], layers_row),
    "electric_flow": (["method", "layers or iterations", "residual", "seconds", "MiB"], electric_flow_row),
    "positions_share": (["graph", "nodes", "share", "layers", "seconds", "of SciPy's eigsh"], positions_share_row),
    "positions_communities": (["nodes", "encoding", "accuracy", "seconds"], positions_communities_row),
    "positions_large": (["graph, 1,000,000 nodes", "method", "share", "seconds"], positions_large_row),
    **{
        name: (["data", "figure", *columns, "seeds", "seconds a run"], partial(nodes_row, columns))
        for name, columns in NODE_COLUMNS.items()
    },
    "k": (
        ["encoding", "k", "left, molecules", "left, random graphs", "5-rings", "6-rings", "other rings", "label"],
        k_row,
    ),
    "large_graph_error": (
        ["graph", "method", "error, nodes", "edges"],
        large_graph_error_row,
    ),
    "large_graph": (["nodes", "edges", "seconds", "ns per edge, layer, filter, probe", "peak GiB"], large_graph_row),
}
FORMATS["grid"] = (["encoding", *GRID_COLUMNS.values()], partial(grid_row, GRID_COLUMNS))
FORMATS["grid, shares"] = (["encoding", "others beaten", *GRID_KINDS, "data sets", "cost"], shares_row)
FORMATS["encoding_costs, pairs"] = (["pairs of", *PAIR_BATCHES], pairs_row)
FORMATS["encoding_costs, beforehand"] = (["nodes and edges of", "molecules a second"], beforehand_row)
FORMATS["encoding_costs, step"] = (["encoder", "ms"], step_row)
FORMATS["encoding_costs, attention"] = (["attention", "ms", "times softmax"], attention_row)
DIRECTED_COLUMNS = NODE_COLUMNS["nodes_directed"][1:]
FORMATS["nodes_directed, seconds"] = (["data", *DIRECTED_COLUMNS], partial(encoding_seconds_row, DIRECTED_COLUMNS))
FORMATS["zinc12k_100_further, short"] = (
    ["encoding", "mean absolute error", "difference to random walks ± standard error"],
    short_further_row,
)
for name in ("throughput", "training", "table2"):
    FORMATS[f"gpu_{name}"] = FORMATS[name]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    stale = []
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        after = render(before)
        if before != after:
            stale.append(page)
            if not args.check:
                page.write_text(after, encoding="utf-8")
    for page in stale:
        print(f"{'not as the results have it' if args.check else 'written'}: {page.relative_to(ROOT)}")
    sys.exit(int(args.check and bool(stale)))


if __name__ == "__main__":
    main()
