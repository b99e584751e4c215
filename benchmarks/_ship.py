"""Make a checkpoint of the zoo from a finished run.

    python benchmarks/_ship.py RUN NAME --part model|encoder --summary TEXT [--normalization zinc|qm9]

Writes tg_lpe/zoo/NAME: the checkpoint, its card with data, command, seed, test figures and the score on RDKit's own
molecules, and a README.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path
from typing import Any

from tg_lpe import zoo
from tg_lpe.encoders import Encoder, load_encoder, make_encoder
from tg_lpe.hub.files import load_tensors, read_json, replacing, write_json
from tg_lpe.models.graph_transformer import GraphTransformer
from tg_lpe.training.loop import count_parameters
from tg_lpe.training.run_folder import RunFolder
from tg_lpe.training.score import SAMPLE, score

ZOO = Path(zoo.__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("name")
    parser.add_argument("--part", choices=("model", "encoder"), required=True)
    parser.add_argument("--summary", required=True)
    parser.add_argument("--normalization", choices=("zinc", "qm9"), default="zinc", help="of the sample's target")
    parser.add_argument("--max-nodes", type=int, help="largest molecule of the sample")
    args = parser.parse_args()

    folder, target = RunFolder(args.run), ZOO / args.name
    config, result, environment = (read_json(f) for f in (folder.config, folder.result, folder.environment))
    if "layout" not in config:
        raise SystemExit(f"{args.run} is a run of release 0.1: ship it with that release")
    if config["command"] == "train":
        arguments = {name: value for name, value in config["model"].items() if name != "class"}
        model: Any = GraphTransformer(**arguments, encoder=config["encoder"])
        model.load_state_dict(load_tensors(folder.model)[0])
        module = model.eval() if args.part == "model" else any_size(model.encoder).eval()
        module.save_pretrained(target)
        figure = config["task"]["metric"]
        metrics = {name: result[name] for name in (f"test_{figure}", f"test_{figure}_relabelled", f"val_{figure}")}
        if args.part == "encoder":
            metrics = {f"transformer_{name}": value for name, value in metrics.items()}
    else:
        module = load_encoder(folder.path / "encoder")
        module.save_pretrained(target)
        metrics = {name: result[name] for name in ("test_loss", "val_loss")}
    arguments = read_json(target / "config.json")
    reads_types = any(arguments.get(name) is not None for name in ("num_node_types", "num_edge_types"))
    card = {
        "name": args.name,
        "class": type(module).__name__,
        "summary": args.summary,
        "num_parameters": count_parameters(module) or sum(p.numel() for p in module.parameters()),
        "data": {
            "source": config["data"]["source"],
            "num_train": result["num_train"],
            "num_val": result["num_val"],
            "num_test": result["num_test"],
            **{key: config["data"][key] for key in ("target", "repair_radicals") if key in config["data"]},
            "atom_types": config["data"]["atom_types"] if reads_types else None,
            "bond_types": config["data"]["bond_types"] if reads_types else None,
        },
        **({"task": config["task"]} if args.part == "model" else {}),
        "pretraining": pretraining(config["pretrained"]),
        "command": command(config["pretrained"], environment),
        "seed": config["loop"]["seed"],
        "epochs": result["epochs"],
        "best_epoch": result["best_epoch"],
        "metrics": metrics,
        "sample": {
            "molecules": f"at most {SAMPLE}",
            "normalization": args.normalization,
            "max_nodes": args.max_nodes,
        },
        "torch": environment["packages"]["torch"],
    }
    before = "" if card["pretraining"] is None else f"`{card['pretraining']}`, whose encoder is PRETRAINED, and "
    best = f"seed {card['seed']}, best of {card['epochs']} epochs: {card['best_epoch']}"
    finish(card, f"{before}`{card['command']}`, {best}")


def finish(card: dict[str, Any], made: str) -> None:
    """Write the card of a checkpoint that lies in the zoo, with its digest and score, and the README.

    Args:
        card: the card so far.
        made: how the checkpoint was made, for the README.
    """
    target = ZOO / card["name"]
    card["sha256"] = hashlib.sha256((target / "model.safetensors").read_bytes()).hexdigest()
    card["sample"]["mae"] = score(card["name"], card, target)
    write_json(target / "card.json", card)
    with replacing(target / "README.md") as temporary:
        Path(temporary).write_text(readme(card, made), encoding="utf-8")
    print(f"{card['name']}: {card['metrics']}, sample {card['sample']}")


def any_size(encoder: Encoder) -> Encoder:
    """The encoder; exact probes of training are replaced by ones for graphs of any size."""
    config = encoder.config_dict()
    if config.get("probes") != "identity" or config.get("num_squarings"):
        return encoder
    result = make_encoder({**config, "probes": "auto"})
    result.load_state_dict(encoder.state_dict())
    return result


def command(pretrained: str | None, environment: dict[str, Any]) -> str:
    """The command of a run, without local paths."""
    words = environment["command"].split()
    for option in ("--data", "--out", "--cache", "--threads", "--device"):
        if option in words:
            place = words.index(option)
            del words[place : place + 2]
    words = [word for word in words if word not in ("--quiet", "--resume", "--strict")]
    return " ".join("PRETRAINED" if word == pretrained and "/" in word else word for word in words)


def pretraining(encoder: str | None) -> str | None:
    """The command that made the encoder, if the run began with one that is not shipped."""
    if encoder is None or "/" not in encoder:
        return None
    folder = RunFolder(Path(encoder).parent)
    return command(read_json(folder.config)["pretrained"], read_json(folder.environment))


def readme(card: dict[str, Any], made: str) -> str:
    """The card as text."""
    data, figures = card["data"], ", ".join(f"{key} {value:.4f}" for key, value in card["metrics"].items())
    sample = (
        "Predictions"
        if card["class"] == "GraphTransformer"
        else "A linear probe on sums of the encoding and its square"
    )
    largest = card["sample"]["max_nodes"]
    small = "" if largest is None else f" of up to {largest} heavy atoms"
    return f"""# {card["name"]}

{card["summary"]}

- `{card["class"]}.from_pretrained("{card["name"]}")`, {card["num_parameters"]:,} parameters
- data: {data["source"]}, {data["num_train"]:,} / {data["num_val"]:,} / {data["num_test"]:,} molecules
- made by {made}
- on the test split: {figures}
- {sample}: mean absolute error {card["sample"]["mae"]:.4f} on {card["sample"]["molecules"]} of
  RDKit's NCI molecules{small},
  constrained solubility normalised as for {card["sample"]["normalization"]} (a test computes it anew)
- sha256 of the weights: `{card["sha256"]}`
"""


if __name__ == "__main__":
    main()
