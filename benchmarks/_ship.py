"""Make a checkpoint of the zoo from a finished run.

    python benchmarks/_ship.py RUN NAME --part model|encoder --summary TEXT [--normalization zinc|qm9]

The script writes tg_lpe/zoo/NAME: the checkpoint, a README, and a card with data, command, seed, test figures and the
score on RDKit's molecules. A model of any class that reads molecules can ship. The score is the error if the target is
the penalised logP, which can be computed, and otherwise the mean prediction.
"""

from __future__ import annotations

import argparse
import hashlib
import shlex
from pathlib import Path
from typing import Any

from _score import SAMPLE, score

from tg_lpe import zoo
from tg_lpe.app.molecules import MoleculeReader
from tg_lpe.app.prediction import load
from tg_lpe.app.training.loop import count_parameters
from tg_lpe.app.training.run_folder import RunFolder
from tg_lpe.app.training.units import figures_text
from tg_lpe.checkpoints.files import read_json, replacing, write_json
from tg_lpe.encoders import Encoder, load_encoder, make_encoder
from tg_lpe.models import MODELS

ZOO = Path(zoo.__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("name")
    parser.add_argument("--part", choices=("model", "encoder"), required=True)
    parser.add_argument("--summary", required=True)
    parser.add_argument("--normalization", choices=("zinc", "qm9"), default="zinc", help="of the sample's target")
    parser.add_argument("--max-nodes", type=int, help="largest molecule of the sample")
    parser.add_argument("--unit", help="what the predictions are and in which unit, unless the task says so")
    args = parser.parse_args()

    folder, target = RunFolder(args.run), ZOO / args.name
    config, result, environment = (read_json(f) for f in (folder.config, folder.result, folder.environment))
    if config["command"] == "train":
        model: Any = load(args.run).model
        try:
            MoleculeReader.of(config["data"])
        except ValueError as error:
            raise SystemExit(f"{args.run} cannot ship, because checkpoints are scored on molecules: {error}") from error
        if args.part == "encoder" and model.encoder is None:
            raise SystemExit(f"{args.run} has no encoder; it has --part model")
        module = model if args.part == "model" else any_size(model.encoder).eval()
        module.save_pretrained(target)
        figure = config["task"]["metric"]
        metrics = {name: result[name] for name in (f"test_{figure}", f"test_{figure}_relabelled", f"val_{figure}")}
        if args.part == "encoder":
            metrics = {f"transformer_{name}": value for name, value in metrics.items()}
    else:
        module = load_encoder(folder.path / "encoder")
        module.save_pretrained(target)
        metrics = {name: result[name] for name in ("test_loss", "val_loss")}
    arguments, data = read_json(target / "config.json"), config["data"]
    is_penalised_logp = data["target"]["computed"] is not None or data["source"] in ("zinc", "zinc12k")
    reads_types = any(arguments.get(name) is not None for name in ("num_node_types", "num_edge_types"))
    card = {
        "name": args.name,
        "class": type(module).__name__,
        "summary": args.summary,
        "num_parameters": count_parameters(module) or sum(p.numel() for p in module.parameters()),
        "data": {
            "source": Path(config["data"]["source"]).name,
            "num_train": result["num_train"],
            "num_val": result["num_val"],
            "num_test": result["num_test"],
            **{key: config["data"][key] for key in ("target", "repair_radicals") if key in config["data"]},
            "atom_types": config["data"]["atom_types"] if reads_types else None,
            "bond_types": config["data"]["bond_types"] if reads_types else None,
            **({"ranges": config["data"]["ranges"]} if args.part == "model" else {}),
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
            "normalization": args.normalization if args.part == "encoder" or is_penalised_logp else None,
            "max_nodes": args.max_nodes,
        },
        "torch": environment["packages"]["torch"],
    }
    before = "" if card["pretraining"] is None else f"`{card['pretraining']}`, whose encoder is PRETRAINED, and "
    if args.unit is not None:
        card["data"]["target"]["unit"] = args.unit
    best = f"seed {card['seed']}, best of {card['epochs']} epochs: {card['best_epoch']}"
    finish(card, f"{before}`{card['command']}`, {best}")


def finish(card: dict[str, Any], made: str) -> None:
    """Write card and README of a checkpoint; ``made`` says in the README how it was made."""
    write_card(card)
    with replacing(ZOO / card["name"] / "README.md") as temporary:
        Path(temporary).write_text(readme(card, made), encoding="utf-8")
    print(f"{card['name']}: {card['metrics']}, sample {card['sample']}")


def write_card(card: dict[str, Any]) -> None:
    """Write the card of a checkpoint, with digest and score."""
    target = ZOO / card["name"]
    card["sha256"] = hashlib.sha256((target / "model.safetensors").read_bytes()).hexdigest()
    card["sample"] |= score(card["name"], card, target)
    write_json(target / "card.json", card)


def any_size(encoder: Encoder) -> Encoder:
    """Return the encoder for graphs of any size: exact probes of training are replaced."""
    config = encoder.config_dict()
    if config.get("probes") != "identity":
        return encoder
    result = make_encoder({**config, "probes": "auto"})
    result.load_state_dict(encoder.state_dict())
    return result


def command(pretrained: str | None, environment: dict[str, Any]) -> str:
    """Return the command of a run, without local paths."""
    words = shlex.split(environment["command"])
    for option in ("--data", "--out", "--cache", "--threads", "--device"):
        if option in words:
            place = words.index(option)
            del words[place : place + 2]
    words = [word for word in words if word not in ("--quiet", "--resume")]
    words = ["PRETRAINED" if word == pretrained and "/" in word else word for word in words]
    return shlex.join(Path(word).name if word.startswith("/") else word for word in words)


def pretraining(encoder: str | None) -> str | None:
    """Return the command that made the encoder, if the run started from an encoder that is not shipped."""
    if encoder is None or "/" not in encoder:
        return None
    folder = RunFolder(Path(encoder).parent)
    return command(read_json(folder.config)["pretrained"], read_json(folder.environment))


def readme(card: dict[str, Any], made: str) -> str:
    """Return the card as text."""
    data, figures = card["data"], figures_text(card)
    sample, is_model = card["sample"], card["class"] in MODELS
    largest = sample["max_nodes"]
    molecules = f"{sample['molecules']} of\n  RDKit's NCI molecules"
    molecules += "" if largest is None else f" of up to {largest} heavy atoms"
    if "mae" in sample:
        what = "Predictions" if is_model else "A linear probe on sums of the encoding and its square"
        normalised = f"penalised logP normalised as for {sample['normalization']}"
        score = f"{what}: mean absolute error {sample['mae']:.4f} on {molecules},\n  {normalised}"
    else:
        means = ", ".join(f"{value:.4f}" for value in sample["mean_prediction"])
        score = f"Mean predictions, no measure of quality: {means} on {molecules}"
    return f"""# {card["name"]}

{card["summary"]}

- `{card["class"]}.from_pretrained("{card["name"]}")`, {card["num_parameters"]:,} parameters
- data: {data["source"]}, {data["num_train"]:,} / {data["num_val"]:,} / {data["num_test"]:,} molecules
- made by {made}
{f"- on the test split: {figures}" + chr(10) if figures else ""}- {score} (a test computes it anew)
- sha256 of the weights: `{card["sha256"]}`
"""


if __name__ == "__main__":
    main()
