"""Count what the package holds and print a table; ``--lower`` writes counts below their ceilings as the new ceilings,
and the lines of each room into docs/architecture.md.

tests/test_house.py fails where a count is above its ceiling in tests/fixtures/ceilings.json.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "tg_lpe"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
CEILINGS = ROOT / "tests" / "fixtures" / "ceilings.json"

PRIVATE_TORCH = r"\btorch\._(?!_|check\b)|\bforward_ad\._"
PRIVATE_PYG = r"\._(data|store|indices|data_list)\b"
BRANCHES = (
    ast.If | ast.IfExp | ast.For | ast.While | ast.ExceptHandler | ast.comprehension | ast.match_case | ast.Assert
)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def lines(folder: Path) -> Counter[str]:
    """Count the lines of Python and C++ in each file below a folder."""
    files = (path for path in folder.rglob("*") if path.suffix in (".py", ".cpp", ".h"))
    return Counter({path.relative_to(folder).as_posix(): len(path.read_bytes().splitlines()) for path in files})


def complexities(tree: ast.AST) -> dict[Function, int]:
    """Map each function to its number of branches, those of functions inside it apart.

    They are 1, and 1 for each if, loop, comprehension and its ifs, except, case, assert, further operand of and/or.
    """
    counts: dict[Function, int] = {}
    nodes: list[tuple[ast.AST, Function | None]] = [(tree, None)]
    while nodes:
        node, owner = nodes.pop()
        if owner and isinstance(node, BRANCHES | ast.BoolOp):
            counts[owner] += len(node.values) - 1 if isinstance(node, ast.BoolOp) else 1 + len(getattr(node, "ifs", ()))
        if isinstance(node, Function):
            counts[node], owner = 1, node
        nodes += [(child, owner) for child in ast.iter_child_nodes(node)]
    return counts


def arguments(function: Function) -> int:
    """Count the arguments of a function without ``self`` and ``cls``."""
    named = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    return len(named) - (named[:1] in (["self"], ["cls"])) + sum(map(bool, (function.args.vararg, function.args.kwarg)))


def static_counts() -> dict[str, int]:
    """Count lines, lengths, arguments, branches, private names and words."""
    files = lines(PACKAGE)
    rooms: Counter[str] = Counter()
    for name, count in files.items():
        rooms[re.sub(r"^((?:app/)?\w+).*", r"\1", name)] += count
    sources = [path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))]
    functions = {node: count for source in sources for node, count in complexities(ast.parse(source)).items()}
    source = "\n".join(sources)
    mentions = Counter(re.findall(r"\b_\w+", source))
    defined = Counter(function.name for function in functions if re.match(r"_(?!_)", function.name))
    application = sum(count for room, count in rooms.items() if room.startswith("app/"))
    apart = application + rooms["theory"] + rooms["testing"]
    return {
        **{f"lines of {room}": count for room, count in sorted(rooms.items())},
        "lines of the library": sum(rooms.values()) - apart,
        "lines of the application": application,
        "lines of tg_lpe": sum(rooms.values()),
        "lines of tests": sum(lines(ROOT / "tests").values()),
        "lines of benchmarks": sum(lines(ROOT / "benchmarks").values()),
        "words of docs/**/*.md": sum(len(path.read_text(encoding="utf-8").split()) for path in pages()),
        "longest file": max(files.values()),
        "longest function": max((node.end_lineno or 0) - node.lineno + 1 for node in functions),
        "most arguments of a constructor": max(arguments(node) for node in functions if node.name == "__init__"),
        "most arguments of a function": max(arguments(node) for node in functions if node.name != "__init__"),
        "functions of complexity above 20": sum(count > 20 for count in functions.values()),
        "private helpers called once": sum(count == 1 and mentions[name] == 2 for name, count in defined.items()),
        "getattr": len(re.findall(r"\bgetattr\(", source)),
        "private names of torch": len(re.findall(PRIVATE_TORCH, source)),
        "private names of PyTorch Geometric": len(re.findall(PRIVATE_PYG, source)),
    }


def pages() -> list[Path]:
    """List the Markdown pages of docs/."""
    return [path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts]


def own_calls(journey: Callable[[], Any]) -> int:
    """Count the calls of the package's functions in a journey: the least of three runs after a first."""
    journey()
    counts, package, before = [0, 0, 0], str(PACKAGE), sys.getprofile()

    def profile(frame: Any, event: str, _: Any) -> None:
        counts[run] += event == "call" and frame.f_code.co_filename.startswith(package)

    for run in range(len(counts)):  # noqa: B007 (profile reads it; the garbage collector may add calls)
        sys.setprofile(profile)
        try:
            journey()
        finally:
            sys.setprofile(before)
    return min(counts)


def journey_counts() -> dict[str, int]:
    """Count the package's own calls in four journeys with one graph of 12 nodes; needs RDKit and the C++ part."""
    import torch
    from torch_geometric.data import Data

    from tg_lpe import GramTransformer, GraphTransformer, LinearTransformerPE, zoo
    from tg_lpe.ops.blas import alone

    tail = torch.arange(12)
    ring = torch.stack([tail, (tail + 1) % 12])
    data = Data(
        x=(tail % 3).unsqueeze(-1),
        edge_index=torch.cat([ring, ring.flip(0)], dim=1),
        edge_attr=torch.ones(24, dtype=torch.int64),
        batch=torch.zeros(12, dtype=torch.int64),
    )
    transform = LinearTransformerPE(k=8)
    model = GraphTransformer(num_node_types=3, num_edge_types=4, encoder=GramTransformer(num_edge_types=4))
    optimizer = torch.optim.Adam(model.parameters())

    def forward() -> torch.Tensor:
        return model(data.x, data.edge_index, data.edge_attr, data.batch)

    def step() -> None:
        optimizer.zero_grad()
        forward().square().sum().backward()
        optimizer.step()

    with alone():  # calls that only limit the number of threads are not counted anywhere
        return {
            "own calls of LinearTransformerPE(k=8)(data)": own_calls(lambda: transform(data)),
            "own calls of a forward pass of GraphTransformer": own_calls(forward),
            'own calls of zoo.load("transformer-zinc12k")': own_calls(lambda: zoo.load("transformer-zinc12k")),
            "own calls of a training step": own_calls(step),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lower", action="store_true", help="write counts below their ceilings as the new ceilings")
    counts, ceilings = {**static_counts(), **journey_counts()}, json.loads(CEILINGS.read_text(encoding="utf-8"))
    if parser.parse_args().lower:
        ceilings = {name: min(count, ceilings.get(name, count)) for name, count in counts.items()}
        CEILINGS.write_text(json.dumps(ceilings, indent=2) + "\n", encoding="utf-8")
        text = ARCHITECTURE.read_text(encoding="utf-8")
        rows = re.compile(r"^\| `([\w/]+?)(/|\.py)` \| [\d,]+ \|", flags=re.M)
        text = rows.sub(lambda row: f"| `{row[1]}{row[2]}` | {counts[f'lines of {row[1]}']:,} |", text)
        ARCHITECTURE.write_text(text, encoding="utf-8")
    print("| what | is | may be |\n|---|---|---|")
    for name, count in counts.items():
        print(f"| {name} | {count:,} | {ceilings.get(name, 0):,} |")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
