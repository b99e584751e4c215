"""Write the tables of the README and of the documentation from the files under benchmarks/results.

    python benchmarks/_readme.py [--check]

A table follows a comment with its file, `<!-- benchmarks/results/NAME.json -->`, and is rewritten as a whole;
`<!-- benchmarks/results/NAME.json, FORM -->` asks for another form or a part of the table, such as "shares". With
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
from typing import Any, NamedTuple

from _results import MEV_IN, RESULTS

from tg_lpe.app.molecules import QM9_UNITS
from tg_lpe.app.training.metrics import METRICS
from tg_lpe.checkpoints.files import read_json

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TABLE = re.compile(r"(<!-- benchmarks/results/(\w+)\.json(, \w+)? -->\n)((?:\|.*\n)*)")

Entry = Mapping[str, Any]
Entries = list[Entry]


class Table(NamedTuple):
    """How the entries of a results file become the rows of a table."""

    columns: str
    """``HEADING: CELL | HEADING: CELL ...``; cells are format strings of the names in :func:`common` and ``fields``."""
    fields: Callable[[Entry], Entry] = dict
    """Returns further fields of an entry."""
    arrange: Callable[[Entry], Entries] = lambda content: results(content)
    """Selects, orders or groups the entries of a file."""
    drop_empty: bool = False
    """Whether columns that are empty in all rows are left out."""


def render(text: str) -> str:
    """Return a page with all tables made from the files."""
    return TABLE.sub(lambda match: match[1] + table(match[2], match[3] or ""), text)


def table(name: str, form: str = "") -> str:
    """Return the table of a file as Markdown, whole or in another form; empty if the file does not exist."""
    file = RESULTS / f"{name}.json"
    return markdown(name + form, read_json(file)) if file.exists() else ""


def markdown(name: str, content: Entry) -> str:
    """Return the content of a results file as a table."""
    form = TABLES[name]
    columns = [column.partition(":") for column in form.columns.split("|")]
    entries = [{**common(entry), **form.fields(entry)} for entry in form.arrange(content)]
    filled = [[heading.strip(), *(cell(text.strip(), entry) for entry in entries)] for heading, _, text in columns]
    head, *rows = zip(*(column for column in filled if any(column[1:]) or not form.drop_empty), strict=True)
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, ["---"] * len(head), *rows))


def cell(text: str, fields: Entry) -> str:
    """Fill the fields of a cell in; the cell is empty if one of them is missing or ``None``."""
    try:
        return text.format_map({name: value for name, value in fields.items() if value is not None})
    except KeyError:
        return ""


def cells(names: Iterable[str] | Mapping[str, str]) -> str:
    """Return columns with the names of their fields as headings, or with the given headings."""
    of = names if isinstance(names, Mapping) else {name: name for name in names}
    return " | ".join(f"{heading}: {{{name}}}" for heading, name in of.items())


def common(entry: Entry) -> dict[str, Any]:
    """Return the figures of an entry, and what many tables show of them; ``error ±`` is the test error of runs."""
    fields, figure, unit = dict(entry), figure_of(entry), entry.get("unit", "")
    for name, of in (("error ±", figure), ("relabelled ±", f"{figure}_relabelled")):
        if f"{of}_std" in entry:
            fields[name] = mean_and_spread(entry[of], entry[f"{of}_std"], unit)
    if (seconds := entry.get("seconds")) is not None:
        fields |= {"minutes": seconds / 60, "ms": 1e3 * seconds}
    if (inner := entry.get("encoder_parameters")) is not None:
        fields["model + encoder"] = f"{entry['num_parameters'] - inner:,}" + (f" + {inner:,}" if inner else "")
    if "metric" in entry and entry["metric"] in METRICS:
        fields["title"] = METRICS[entry["metric"]].title
    if "seeds" in entry:
        fields["num_seeds"] = len(entry["seeds"])
    if "row" in entry:
        fields["label"] = f"**{entry['row']}**" if entry["row"] == "GramTransformer" else entry["row"]
    return fields


def figure_of(entry: Entry) -> str:
    """Return the name of the test figure of some runs."""
    return f"test_{entry.get('metric', 'mae')}"


def mean_and_spread(mean: float, std: float | None, unit: str = "") -> str:
    """Format an error, with the standard deviation over seeds if there are several; energies are in meV."""
    if unit in MEV_IN:
        spread = "" if std is None else f" ± {MEV_IN[unit] * std:.1f}"
        return f"{MEV_IN[unit] * mean:.1f}{spread} meV"
    return f"{mean:.4f}" + ("" if std is None else f" ± {std:.4f}")


def results(content: Entry) -> Entries:
    """Return the entries of a file; those of `tg-lpe compare` are "rows"."""
    return content["results"] if "results" in content else content["rows"]


def only(condition: Callable[[Entry], bool]) -> Callable[[Entry], Entries]:
    """Select the entries that fulfil a condition; the file has more."""
    return lambda content: [entry for entry in results(content) if condition(entry)]


def worst_first(content: Entry) -> Entries:
    """Order runs by their test error."""
    return sorted(results(content), key=lambda entry: -entry[figure_of(entry)])


def pivot(
    by: str, of: str, text: str | Callable[[Entry], str], choose: Callable[[Entry], Entries] = results
) -> Callable[[Entry], Entries]:
    """Make one row for each value of a key: its first entry, and a text for each value of another key."""

    def arrange(content: Entry) -> Entries:
        rows: dict[str, dict[str, Any]] = {}
        for entry in choose(content):
            filled = cell(text, common(entry)) if isinstance(text, str) else text(entry)
            rows.setdefault(entry[by], dict(entry))[entry[of]] = filled
        return list(rows.values())

    return arrange


def groups(entries: Entries, by: str, of: str) -> Entries:
    """Make one dictionary for each value of a key, with the entries of this value by the value of another."""
    return [
        {by: value, **{str(entry[of]): entry for entry in entries if entry[by] == value}}
        for value in dict.fromkeys(entry[by] for entry in entries)
    ]


BUDGETS = (15, 40, 100, 300)


def budgets(_: Entry) -> Entries:
    """Return the rows of benchmarks/molecules.py with 9 layers, over all numbers of epochs."""
    rows = [
        {**row, "row": re.sub(", nodes alone|, 9 layers", "", row["row"]), "of": f"{epochs} epochs"}
        for epochs in BUDGETS
        for row in results(read_json(RESULTS / f"zinc12k_{epochs}_budget.json"))
    ]
    return sorted(rows, key=lambda row: row["row"])


ENERGIES = ("homo", "lumo", "gap")


def energies_fields(entry: Entry) -> Entry:
    """Show the error of each energy of QM9 and the difference to random walks, in meV."""
    scale, pair = MEV_IN[QM9_UNITS["gap"]], entry.get("difference")
    errors = {name: f"{scale * entry['test_mae_columns'][name]:.1f}" for name in ENERGIES}
    difference = None if pair is None else minus(f"{scale * pair['mean']:+.1f} ± {scale * pair['error']:.1f}")
    return {**errors, "difference": difference}


def minus(text: str) -> str:
    """Write negative numbers with a minus sign instead of a hyphen."""
    return text.replace("-", "−")


def by_attention(*names: str) -> Table:
    """Make the table of encodings by attention; a row without the name of one belongs to the first."""

    def split(entry: Entry) -> Entry:
        attention, _, encoding = entry["row"].partition(", ")
        is_named = attention in names
        return {**entry, "of": attention if is_named else names[0], "name": encoding if is_named else entry["row"]}

    return Table(
        f"encoding: {{name}} | {cells(names)}",
        arrange=pivot("name", "of", "{error ±}", lambda content: [split(entry) for entry in worst_first(content)]),
    )


def comparison_fields(entry: Entry) -> Entry:
    """Show a row of `tg-lpe compare`."""
    pairs = {name: entry["differences"].get(name) for name in ("none", "walks")}
    return {
        **{name: mean_and_spread(entry[name]["mean"], entry[name]["std"]) for name in ("test", "relabelled")},
        **{name: minus(f"{p['mean']:+.3f} ± {p['error']:.3f}") if p else "–" for name, p in pairs.items()},
        "encode": f"{1e3 * entry['encode_seconds']:.3f} ms" if entry["encode_seconds"] else "–",
    }


def moleculenet_rows(content: Entry) -> Entries:
    """Show the rows of benchmarks/moleculenet.py: figures, errors of differences, and seconds of complete rows."""

    def figure(entry: Entry) -> str:
        error = entry.get("difference_error")
        return f"{entry['test']:.3f}" + ("" if error is None else f" ± {error:.3f}")

    seconds: dict[str, list[float]] = {}
    for entry in results(content):
        seconds.setdefault(entry["row"], []).append(entry["seconds"])
    of_all = {row: sum(each) for row, each in seconds.items() if len(each) == len(seconds["default"])}
    return [{**row, "total": of_all.get(row["row"])} for row in pivot("row", "set", figure)(content)]


def first_and_last_loss(curve: Entry) -> str:
    """Show a curve of benchmarks/synthetic.py: geometric means of the first and the last losses, and slope."""
    first, last = (statistics.geometric_mean(losses) for losses in (curve["loss"][0], curve["loss"][-1]))
    return f"{first:.1e} to {last:.1e}, {curve['slope']:.2f}"


def synthetic_panels(content: Entry) -> Entries:
    """Name the curves by panel; those of single eigenvectors are in the figure alone."""
    rows = [entry for entry in results(content) if "-" in entry["curve"] or entry["figure"] != 2]
    return [{**row, "name": f"{row['panel'][0]}({row['panel'][1]}), {row['curve'].replace('_', ' ')}"} for row in rows]


BREC_LEFT_OUT = {
    *("2-WL", "delta-2-LWL"),
    *(f"GraphTransformer({name})" for name in ("HeatKernel", "EffectiveResistance", "SpectralEncoder", "LPE")),
    "GraphTransformer(LaplacianEigenvectors)",
}
"""Rows that the table of BREC leaves out; the text sums up the networks among them."""


def brec_fields(entry: Entry) -> Entry:
    """Show a colouring or network of benchmarks/brec.py."""
    return {**entry["counts"], "name": entry["row"] if entry["kind"] == "oracle" else f"`{entry['row']}`"}


PRIMAL_SIZES = ("1 x 1,000", "1 x 10,000", "1 x 100,000", "1 x 1,000,000", "128 x 25")


def primal_sizes(content: Entry) -> Entries:
    """Name the number and size of the graphs of benchmarks/primal.py."""
    return [{**row, "sizes": f"{row['graphs']} x {row['nodes_a_graph']:,}"} for row in results(content)]


NODE_COLUMNS = ("none", "random walks", "gram-k16", "eigenvectors", "positions", "positions, edges")
DIRECTED_COLUMNS = ("random walks", "eigenvectors", "directed walks", "magnetic", "magnetic walks")
ALIKE = ("photo", "tolokers", "cs", "cs, links")
"""Tasks of benchmarks/nodes.py on which no encoding helps; the text says so."""


def nodes_by_figure(content: Entry) -> Entries:
    """Group the encodings of benchmarks/nodes.py by the task, once for each of its figures."""
    return [
        {**task, "figure": figure}
        for task in groups(results(content), "data", "encoding")
        if task["data"] not in ALIKE
        for figure in next(row for row in task.values() if "runs" in row)["runs"][0]["test"]
    ]


def nodes_fields(columns: tuple[str, ...], entry: Entry, spreads: bool = True) -> Entry:
    """Show a figure of a task of benchmarks/nodes.py: mean and standard deviation in hundredths, the best in bold."""
    figure, rows = entry["figure"], {name: entry[name] for name in columns if name in entry}
    best = max(row[figure] for row in rows.values())

    def text(row: Entry) -> str:
        spread = "" if row[f"{figure}_std"] is None or not spreads else f" ± {100 * row[f'{figure}_std']:.1f}"
        mean = f"{100 * row[figure]:.1f}{spread}"
        return f"**{mean}**" if row[figure] == best else mean

    return {
        "figure": METRICS[figure].title if figure in METRICS else figure,
        **{name: text(row) for name, row in rows.items()},
        "num_seeds": " or ".join(map(str, sorted({len(row["runs"]) for row in rows.values()}))),
        "mean_seconds": statistics.fmean(row["seconds"] for row in rows.values()),
    }


FEW = {f"{name}, {count}": count for name in ("zinc12k", "qm9, gap") for count in ("300", "1,000", "3,000")}
"""Columns of benchmarks/grid.py with fewer labels of another one, which have a table of their own."""
COORDINATES = "huangpu, coordinates"  # in the picture alone
GRID_COLUMNS = {
    **{"zinc12k": "ZINC-12k", **FEW},
    **{"qm9, gap": "QM9, gap", "molhiv": "molhiv", "peptides-func": "peptides"},
    **{"PATTERN": "PATTERN", "CLUSTER": "CLUSTER", "email": "email", "cora, no features": "Cora"},
    **{"email, links": "email, links", "cora, links": "Cora, links", "squirrel": "squirrel", "huangpu": "huangpu"},
    **{name: name for name in ("huangpu, features", COORDINATES, "debian", "5-cycles", "6-cycles", "BREC")},
    **{name: name for name in ("spanning trees", "power grids")},
}


GRID_SHOWN = (
    "cycles",
    "whitened gram-k16",
    "universal-k32",
    "whitened universal-k32",
    "GramTransformer",
    "LinearTransformer",
    "whitened-walks",
    "positions",
)


def grid_by_row(content: Entry) -> Entries:
    """Group the cells of benchmarks/grid.py by the encoding: those of most columns, and some others."""
    cells = [cell for cell in results(content) if cell["column"] not in FEW]
    rows, columns = groups(cells, "row", "column"), {cell["column"] for cell in cells}
    return [row for row in rows if len(row) - 1 > 0.7 * len(columns) or row["row"] in GRID_SHOWN]


def grid_fields(entry: Entry) -> Entry:
    """Show an encoding of benchmarks/grid.py on each kind of data; what was not run is empty."""
    return {name: grid_cell(entry[name]) for name in GRID_COLUMNS if name in entry}


def grid_cell(cell: Entry) -> str:
    """Return the text of a cell: hundredths if more is better, an energy in meV; and + or - against walks."""
    mean, unit = cell["test"]["mean"], QM9_UNITS["gap"] if cell["column"].startswith("qm9, gap") else ""
    if unit:
        text = f"{MEV_IN[unit] * mean:.0f}"
    else:
        text = minus(f"{100 * mean:.1f}") if cell["direction"] == "max" else f"{mean:.3f}"
    pair = cell["differences"].get("walks")
    if len(cell["seeds"]) > 1 and pair is not None and abs(pair["mean"]) > 3 * (pair["error"] or 0.0):
        text += "\u00a0+" if (pair["mean"] > 0) == (cell["direction"] == "max") else "\u00a0−"
    return text if len(cell["seeds"]) > 1 else f"({text})"


GRID_KINDS = {
    "molecules": ("zinc12k", "qm9, gap", "molhiv", "peptides-func"),
    "one network": (
        *("email", "cora, no features", "email, links", "cora, links", "squirrel"),
        *("huangpu", "huangpu, features", "huangpu, coordinates", "debian"),
    ),
    "cycles": ("5-cycles", "6-cycles"),
    "flows": ("spanning trees", "power grids"),
}


def with_shares(content: Entry) -> Entries:
    """Return the encodings of benchmarks/grid.py with the share of the others that each beats by column, best first.

    BREC, where nothing is trained, few labels, and encodings of fewer than eight columns are left out.
    """
    trained = (cell for cell in content["results"] if cell["column"] not in ("BREC", *FEW))
    columns = groups([cell for cell in trained if ", no " not in cell["row"]], "column", "row")
    shares: dict[str, dict[str, float]] = {}
    for column in columns:
        cells = {row: cell for row, cell in column.items() if row != "column"}
        for row, cell in cells.items():
            sign = 1 if cell["direction"] == "max" else -1
            gains = [sign * (cell["test"]["mean"] - other["test"]["mean"]) for other in cells.values()]
            beaten = sum(gain > 0 for gain in gains) + (sum(gain == 0 for gain in gains) - 1) / 2
            shares.setdefault(row, {})[column["column"]] = beaten / (len(cells) - 1)
    rows = [{"row": row, "shares": values} for row, values in shares.items() if len(values) >= 8]
    return sorted(rows, key=lambda row: -statistics.fmean(row["shares"].values()))


def shares_fields(entry: Entry) -> Entry:
    """Show the mean share over kinds of data, with its standard error, and over each kind."""
    shares = entry["shares"]
    error = f" ± {100 * statistics.stdev(shares.values()) / math.sqrt(len(shares)):.0f}" if len(shares) > 1 else ""
    of_kinds = {kind: [shares[name] for name in names if name in shares] for kind, names in GRID_KINDS.items()}
    return {
        "mean": f"{100 * statistics.fmean(shares.values()):.0f}{error}",
        **{kind: f"{100 * statistics.fmean(values):.0f}" for kind, values in of_kinds.items() if values},
        "count": len(shares),
    }


def encoders_of_large_graphs(content: Entry) -> Entries:
    """Return the rows of encoders that encode at least two of the graphs."""
    done = [row["encoder"] for row in content["results"] if row["said"] == "done"]
    return [row for row in content["results"] if done.count(row["encoder"]) > 1]


def seconds_or_said(entry: Entry) -> str:
    """Show the seconds of an encoder on a large graph, or what it says."""
    said = {"done": f"{entry['seconds']:.1f}", "over a minute": "*>60*"}
    return said.get(entry["said"], f"*{entry['said']}*")


def by_row(values: Callable[[Entry], Mapping[str, float]], key: str) -> Callable[[Entry], Entries]:
    """Group runs by model and row, best first in one column, with means of the values of each entry over the seeds."""

    def arrange(content: Entry) -> Entries:
        found: dict[tuple[str, str], dict[str, list[float]]] = {}
        for entry in content["results"]:
            figures = found.setdefault((entry.get("backbone", ""), entry["row"]), {})
            for name, value in values(entry).items():
                figures.setdefault(name, []).append(value)
        order = sorted(found.items(), key=lambda one: (one[0][0], -statistics.fmean(one[1][key])))
        return [
            {"row": f"{row}, transformer" if model == "transformer" else row}
            | {name: minus(f"{statistics.fmean(values):.2f}") for name, values in figures.items()}
            for (model, row), figures in order
        ]

    return arrange


def of_grid(entry: Entry) -> dict[str, float]:
    """Return the figures of benchmarks/flow.py that its table shows, by name and number of buses."""
    size = "".join(filter(str.isdigit, entry["grid"]))
    return {f"{name} {size}": entry[name] for name in ("flow", "outages")}


TABLES: dict[str, Table] = {
    **{
        name: by_attention(*attentions)
        for name, attentions in {
            "zinc12k_15_spectral": ("default", "san"),
            "zinc12k_40_pairs": ("edge", "bias", "pairs"),
        }.items()
    },
    "zinc12k_15_tuples": Table(
        "encoding: {label} | test MAE: {error ±} | minutes a run: {minutes:.0f}", arrange=worst_first
    ),
    "zinc12k_100_budget, epochs": Table(
        f"encoding: {{label}} | {cells(f'{epochs} epochs' for epochs in BUDGETS)}",
        arrange=pivot("row", "of", "{val_mae:.3f} / {test_mae:.3f}", budgets),
    ),
    "qm9_gap_random_10": Table("encoding: {label} | test MAE: {error ±}", arrange=worst_first),
    "qm9_frontier_scaffold_10": Table(
        f"encoding: {{label}} | test error: {{error ±}} | {cells({f'{name}, meV': name for name in ENERGIES})}"
        " | difference to random walks: {difference} | seeds: {num_seeds}",
        energies_fields,
        worst_first,
    ),
    "esol_compare": Table(
        "encoding: {name} | test MAE: {test} | against none: {none} | against walks: {walks}"
        " | after relabelling: {relabelled} | encoding a graph: {encode}"
        " | model + encoder: {model + encoder}",
        comparison_fields,
        lambda content: sorted(content["rows"], key=lambda entry: entry["test"]["mean"]),
    ),
    "moleculenet": Table(
        f"row: {{row}} | {cells(('bbbp', 'bace', 'clintox', 'tox21', 'sider', 'esol'))} | CPU s: {{total:,.0f}}",
        arrange=moleculenet_rows,
        drop_empty=True,
    ),
    **{
        name: Table(
            f"data: {{experiment}}, {{title}} | {cells(columns)}",
            arrange=pivot("experiment", "row", "{error ±}"),
        )
        for name, columns in {
            "primphormer": ("none", "primal", "dual", "softmax", "performer", "sgformer"),
            "san": ("none", "eigenspaces", "published"),
        }.items()
    },
    "synthetic": Table(
        "panel: {name} | complete: {complete} | CSL: {csl}",
        arrange=pivot("name", "graphs", first_and_last_loss, synthetic_panels),
    ),
    "table2": Table(
        "data: {data} | encoding: {row} | paper's MAE: {paper[mae]:.3f} ± {paper[std]:.4f} | test MAE: {error ±}"
        " | after relabelling: {relabelled ±}",
        lambda entry: {"data": entry["set"].upper()},
    ),
    "brec": Table(
        f": {{name}} | all, 400: {{total}} | {cells({'strongly regular, 50': 'strongly regular', 'CFI, 100': 'CFI'})}"
        " | at most: {bound}",
        brec_fields,
        only(lambda entry: entry["row"] not in BREC_LEFT_OUT),
    ),
    "throughput": Table(
        "method: {what} | graphs/s: {graphs_per_second:,.0f} | times AddLaplacianEigenvectorPE: {ratio:.1f}"
    ),
    "training": Table("model: {row} | graphs/s: {graphs_per_second:,.0f} | time relative to none: {ratio_to_none:.2f}"),
    "scaling": Table(
        f"encoder: {{encoder}} | {cells(('debian', 'clique', 'star', 'power law'))}",
        arrange=pivot("encoder", "graph", seconds_or_said, encoders_of_large_graphs),
    ),
    "positions_gpu": Table(
        f"method: {{method}} | {cells(('5 blocks', 'grid', 'geometric'))}",
        arrange=pivot("method", "family", "{seconds:.1f}"),
    ),
    **{
        f"encoding_costs, {part}": Table(columns, arrange=only(lambda entry, part=part: entry["part"] == part))
        for part, columns in {
            "pairs": "pairs of: `{what}` | molecules a second: {graphs_per_second:,.0f}",
            "beforehand": "nodes and edges of: `{what}` | molecules a second: {graphs_per_second:,.0f}",
            "step": "encoder: `{what}` | ms: {ms:.0f}",
            "attention": "attention: {what} | ms: {ms:.0f} | times softmax: {ratio:.2f}",
        }.items()
    },
    "edges_on_disk": Table(
        "nodes: {num_nodes:,} | edges: {num_edges:,} | CPU seconds to sort: {build_cpu_seconds:,.0f}"
        " | to encode: {cpu_seconds:,.0f} | peak GiB: {peak_gib:.1f}"
    ),
    "primal": Table(
        f"attention: {{attention}} | {cells(PRIMAL_SIZES)}",
        arrange=pivot("attention", "sizes", "{training_us_a_node:.2f}", primal_sizes),
    ),
    "flow": Table(
        "row: {row} | flow, 2869: {flow 2869} | flow, 9241: {flow 9241} | outages, 9241: {outages 9241}",
        arrange=by_row(of_grid, "flow 9241"),
    ),
    "algorithms": Table(
        "row: {row} | bridges, 512: {bridges 512} | spanning tree, 16: {mst 16} | 512: {mst 512}"
        " | Steiner tree, 512: {steinertree 512} | flow, 512: {flow 512}",
        arrange=by_row(lambda entry: {f"{entry['task']} {entry['size']}": entry["score"]}, "mst 512"),
    ),
    "positions_communities": Table(
        "encoding: {encoding} | accuracy: {accuracy:.3f} ± {spread:.3f} | seconds: {seconds:.2f}"
    ),
    "nodes": Table(
        f"data: {{data}} | figure: {{figure}} | {cells(NODE_COLUMNS)}",
        partial(nodes_fields, NODE_COLUMNS, spreads=False),
        nodes_by_figure,
    ),
    "nodes_directed": Table(
        f"data: {{data}} | figure: {{figure}} | {cells(('none', *DIRECTED_COLUMNS))} | seeds: {{num_seeds}}"
        " | seconds a run: {mean_seconds:.0f}",
        partial(nodes_fields, ("none", *DIRECTED_COLUMNS)),
        nodes_by_figure,
    ),
    "k": Table(
        "encoding: {encoding} | k: {k} | left, molecules: {molecules:.1f} % | left, random graphs: {random:.1f} %"
        " | 5-rings: {f1_5:.2f} | 6-rings: {f1_6:.2f} | other rings: {f1_other:.2f}",
        lambda entry: {name: 100 * entry[f"unexplained_{name}"] for name in ("molecules", "random")},
        only(lambda entry: entry["k"] > 4),
    ),
    "grid": Table(
        f"encoding: {{row}} | {cells({title: name for name, title in GRID_COLUMNS.items() if name != COORDINATES})}",
        grid_fields,
        grid_by_row,
        drop_empty=True,
    ),
    "grid, labels": Table(
        "encoding: {row} | 300: {zinc12k, 300} | 1,000: {zinc12k, 1,000} | 3,000: {zinc12k, 3,000} | 10,000: {zinc12k}"
        " | QM9, 1,000: {qm9, gap, 1,000} | 20,000: {qm9, gap}",
        grid_fields,
        lambda content: [row for row in groups(results(content), "row", "column") if row.keys() & FEW],
        drop_empty=True,
    ),
    "readable": Table(
        f"graphs: {{kind}} | {cells(('heat', 'resistance', 'cycles'))} | structure, from walks: {{structure}}",
        lambda entry: {name: minus(f"{value:.2f}") for name, value in entry.items() if isinstance(value, float)},
    ),
    "grid, shares": Table(
        f"encoding: {{row}} | others beaten, %: {{mean}} | {cells(tuple(GRID_KINDS))} | data sets: {{count}}",
        shares_fields,
        with_shares,
    ),
}
TABLES["gpu_throughput"], TABLES["grid_gine"] = TABLES["throughput"], TABLES["grid"]


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
