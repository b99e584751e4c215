"""The data that ``train`` and ``pretrain`` read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jsonargparse import Namespace

from tg_lpe.app.cli.options import add_config, add_reading
from tg_lpe.app.cli.parser import Parser, as_option
from tg_lpe.app.cli.pretrained import features_of, vocabulary_for, vocabulary_of
from tg_lpe.app.datasets import load_block_model, load_folder, load_node_graph
from tg_lpe.app.datasets.block_models import BLOCK_MODELS
from tg_lpe.app.datasets.splits import graph_files
from tg_lpe.app.prediction import Predictor
from tg_lpe.checkpoints.checkpoint import Checkpoint
from tg_lpe.data import GraphSplits
from tg_lpe.data.splits import node_splits
from tg_lpe.encoders import ENCODERS, make_encoder

SOURCES = ("zinc", "zinc12k", "qm9", "qm9-solubility", "nci", "molhiv")
"""Named datasets of molecules with their conventions."""

GENERATED = tuple(BLOCK_MODELS)
"""Datasets that are generated."""

ChosenEncoder = Mapping[str, Any] | Checkpoint | None


def add_data(parser: Parser, has_preset: bool = True) -> None:
    """Add the argument SOURCE and the options of the data."""
    group = parser.add_argument_group("data")
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help=f"the data: a named data set with its conventions ({', '.join(SOURCES)}); a file or folder of molecules "
        "(.smi, .csv, .tsv, .txt, .sdf, .mol, also compressed as .gz, .bz2, .xz, .zip; .parquet); the root folder of a "
        "data set that PyTorch Geometric or OGB has processed; an .npz file with one graph and classes of its nodes "
        f"(--seed picks one of its published splits); or {' or '.join(GENERATED)}, drawn from --split_seed",
    )
    add_config(parser, has_preset)
    group.add_argument(
        "--data",
        metavar="DIR",
        help="folder of a named data set: train/val/test as .smi, .csv, ..., or the root folder that PyTorch Geometric "
        "or OGB wrote; for qm9 also its table; nci needs none",
    )
    add_reading(group)
    text = "read all spellings of a SMILES as the same graph (default: true, except for published data sets)"
    group.add_argument("--canonical", type=bool | None, nargs="?", const=True, help=text)
    group.add_argument(
        "--features",
        choices=("types", "ogb"),
        help="features of atoms and bonds: their types (default), or ogb's nine and three features (default for "
        "molhiv)",
    )
    group.add_argument(
        "--split",
        choices=("random", "scaffold", "butina", "standard"),
        help="how to divide a single file: 80/10/10 at random (default), by scaffold, or by Butina clusters of similar "
        "molecules; standard is the split of QM9 into 100,000 / 17,748 / 13,083, drawn from --split_seed",
    )
    text = "column of a single file with the part of each row: train, val (or valid, validation) or test"
    group.add_argument("--split_column", metavar="COLUMN", help=text)
    text = "seed that draws the split, picks a published split, or draws pattern and cluster (default: --seed, or 0)"
    group.add_argument("--split_seed", type=int, metavar="N", help=text)
    group.add_argument(
        "--graphs",
        type=int,
        metavar="N",
        help="number of training graphs: the first N (default: all); for pattern and cluster the number to "
        "draw (default: 10000), with validation and test sets in proportion",
    )
    group.add_argument("--directed", action="store_true", help="keep the directions of edges in an .npz file")
    group.add_argument("--cache", metavar="DIR", help="folder for processed molecules (default: ~/.cache/tg_lpe)")


def load_data(args: Namespace, chosen: ChosenEncoder, start: Predictor | None = None, **targets: Any) -> GraphSplits:
    """Load the data that the arguments name, with atom types as a pretrained encoder or model numbers them."""
    seed = args.get("data_seed", args.seed) if args.split_seed is None else args.split_seed
    has_folder, is_graph = args.source in SOURCES and args.source != "nci", args.source.lower().endswith(".npz")
    for name, is_read in (("data", has_folder or args.data == args.source), ("directed", is_graph)):
        if args[name] and not is_read:
            kind = "named data sets" if name == "data" else ".npz files"
            raise ValueError(f"{as_option(name, args[name])} would have no effect with {args.source}; it is for {kind}")
    folder = args.data if has_folder else args.source
    is_folder = folder not in (None, "nci", *GENERATED) and bool(graph_files(folder))
    if is_folder and args.source in ("zinc", "qm9-solubility"):
        raise ValueError(f"{args.source} computes its label from SMILES, which the graphs in {folder} lack")
    if is_folder or is_graph or args.source in GENERATED:
        splits = _load_graphs(args, chosen, seed, targets, folder if is_folder else None)
    else:
        splits = _load_molecules(args, chosen, start, seed, targets)
    if is_folder and args.source in ("zinc12k", "molhiv") and len(splits.target.columns) != 1:
        raise ValueError(f"{args.source} has one label, but graphs in {folder} have {len(splits.target.columns)}")
    return splits if args.source in GENERATED else _as_asked(args, splits)


def _as_asked(args: Namespace, splits: GraphSplits) -> GraphSplits:
    """Keep the first training graphs; raise ``ValueError`` if options are for a random split and this is another."""
    split = splits.split or {}
    reason = f"{args.source}, whose split is {split.get('kind')}: only random splits have a seed"
    if args.split == "random" and split.get("kind") != "random":
        raise ValueError(f"--split random would have no effect with {reason}")
    if args.split_seed is not None and not split.keys() & {"seed", "number"}:
        raise ValueError(f"--split_seed {args.split_seed} would have no effect with {reason}")
    if args.graphs is None:
        return splits
    if not 1 <= args.graphs <= len(splits.train):
        raise ValueError(f"--graphs must be 1 to {len(splits.train)}, the size of the training set, got {args.graphs}")
    smiles = {part: texts[: args.graphs] if part == "train" else texts for part, texts in splits.smiles.items()}
    return replace(splits, train=splits.train.copy(torch.arange(args.graphs)), smiles=smiles)


def _load_graphs(
    args: Namespace, chosen: ChosenEncoder, seed: int, targets: Mapping[str, Any], folder: str | None
) -> GraphSplits:
    """Read a folder, draw the graphs of a block model, or load a graph with classes of its nodes; refuse options."""
    names = ("smiles_column", "split", "split_column", "cache", "features", "canonical", "folds")
    options = {**{name: args.get(name) for name in names}, **targets}
    if folder is not None:
        del options["targets"]
    elif args.source not in GENERATED:
        options["graphs"] = args.graphs
    for name, value in options.items():
        is_random = (name, value) == ("split", "random") and args.source not in GENERATED  # see _as_asked
        if value not in (None, [], ()) and (value is not False or name == "canonical") and not is_random:
            raise ValueError(f"{as_option(name, value)} would have no effect with {args.source}; it is for molecules")
    if folder is not None:
        return load_folder(folder, seed, targets["targets"] or ())
    if args.source in GENERATED:
        return load_block_model(args.source, seed, args.graphs)
    data = load_node_graph(args.source, undirected=not args.directed)
    if args.split_seed is None and "train_mask" in data:
        seed = args.seed  # each of several seeds picks its own published split
    splits = node_splits(data, seed)
    config = chosen.config if isinstance(chosen, Checkpoint) else chosen or {}
    cls = config.get("class")
    if not args.directed and cls in ENCODERS and make_encoder(config, splits.spec).directed:
        raise ValueError(f"the encoder {cls} reads the directions of edges: add --directed or choose another")
    return splits


def _load_molecules(
    args: Namespace, chosen: ChosenEncoder, start: Predictor | None, seed: int, targets: Mapping[str, Any]
) -> GraphSplits:
    """Load the molecules that the arguments name, with one seed for all random draws."""
    from tg_lpe.app.molecules import load_molecules

    is_named = args.source in SOURCES
    if not is_named and not Path(args.source).exists():
        named = ", ".join((*SOURCES, *GENERATED))
        raise ValueError(f"the source must be one of {named}, or an existing file or folder; got {args.source!r}")
    if args.data is None and is_named and args.source != "nci":
        content = "its properties, such as properties.csv" if args.source == "qm9" else "train, val and test"
        raise ValueError(f"{args.source} needs --data DIR, a folder with {content}")
    features: Any = args.features or ("ogb" if args.source == "molhiv" else "types")
    if start is not None:
        trained = features_of(start.data)
        if trained is None:
            raise ValueError(f"model {args.start} does not say how it reads molecules: name the folder of its training")
        if args.features not in (None, trained):
            raise ValueError(f"model {args.start} was trained with --features {trained}, got --features {features}")
        features = trained
    of_encoder = vocabulary_for(chosen, features) if isinstance(chosen, Checkpoint) else None
    return load_molecules(
        args.data if args.data is not None else args.source,
        name=args.source if is_named else None,
        smiles_column=args.smiles_column,
        features=features,
        canonical=args.canonical,
        vocabulary=of_encoder if start is None else vocabulary_of(start.data),
        split=args.split,
        split_column=args.split_column,
        fold=args.get("fold"),
        cache_dir=args.cache,
        seed=seed,
        progress=not args.quiet,
        **targets,
    )
