"""``tg-lpe encode``."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from jsonargparse import Namespace

from tg_lpe.app.cli.options import Chosen, add_encoder, add_reading, chosen_encoder, encoder_label, parse_rest
from tg_lpe.app.cli.parser import Parser
from tg_lpe.app.cli.pretrained import reader_of
from tg_lpe.app.cli.runs import add_process, set_threads
from tg_lpe.app.jobs import ROWS, EncodingJob
from tg_lpe.app.prediction import load
from tg_lpe.app.tables import open_parquet, parquet_files
from tg_lpe.app.training.build import start_encoder
from tg_lpe.checkpoints.checkpoint import Checkpoint
from tg_lpe.checkpoints.files import check_writable, replacing, save_tensors
from tg_lpe.data import DataSpec
from tg_lpe.encoders.registry import load_encoder
from tg_lpe.transforms import LinearTransformerPE
from tg_lpe.transforms.linear_transformer_pe import DEFAULT_ENCODER

if TYPE_CHECKING:
    from tg_lpe.app.molecules import MoleculeReader

EDGE_ENCODING = "linear_transformer_edge_pe"
"""Name of the edge encodings in the output."""


def parse(parser: Parser, words: Sequence[str]) -> Namespace:
    """Declare the options of the command and parse them."""
    parser.usage = "tg-lpe encode IN OUT [options]"
    parser.epilog = (
        "If IN is a file of molecules, OUT holds linear_transformer_pe [num_nodes, k], edge_index [2, num_edges] "
        "(nodes are numbered within each molecule), x (atom types), node_ptr and edge_ptr [num_molecules + 1], line "
        f"[num_molecules] (line of IN), and with --edges {EDGE_ENCODING} [num_edges, edge_out_channels]. torch.load "
        "reads a .pt file, safetensors.torch.load_file a .safetensors file. If IN is a Parquet file or a folder of "
        "them, with a column of SMILES or of graphs, it is encoded shard by shard into the folder OUT. To continue a "
        "job that was stopped, run the same command again. Example: tg-lpe encode molecules.smi encodings.pt"
    )
    parser.add_argument("input", metavar="IN", help="molecules as for tg-lpe predict, or .parquet file or folder")
    parser.add_argument("output", metavar="OUT", help=".pt or .safetensors file; for Parquet, a folder")
    chosen = Chosen(parser, words, "encoder", "pretrained")
    add_encoder(parser, chosen, f"default: the pretrained {DEFAULT_ENCODER}")
    add_reading(parser)
    parser.add_argument("--k", type=int, help="number of columns to write (default: all columns of the encoder)")
    parser.add_argument("--edges", action="store_true", help="encode bonds too, with an encoder that has edge channels")
    parquet = parser.add_argument_group("Parquet")
    parquet.add_argument("--rows_per_shard", type=int, metavar="N", help="rows in each file of OUT (default: 10000)")
    parquet.add_argument("--part", metavar="I/N", help="encode only shards I, I + N, I + 2N, ... (I counts from 0)")
    parquet.add_argument("--ray", action="store_true", help="encode the shards as tasks of Ray, here or on its cluster")
    add_process(parser)
    return parse_rest(parser, chosen)


def run(args: Namespace) -> None:
    """Write the positional encodings of the molecules of a file, or of a Parquet collection of molecules or graphs."""
    source, output = Path(args.input), Path(args.output)
    is_parquet = source.is_dir() or source.suffix.lower() == ".parquet"
    for name, value in (("rows_per_shard", args.rows_per_shard), ("part", args.part), ("ray", args.ray or None)):
        if value is not None and not is_parquet:
            raise ValueError(f"--{name} {value} would have no effect with {args.input}; it is for Parquet files")
    if is_parquet and output.suffix in (".pt", ".safetensors", ".parquet"):
        raise ValueError(f"OUT must be a folder for the shards of Parquet files, got {args.output}")
    if not is_parquet and output.suffix not in (".pt", ".safetensors"):
        raise ValueError(f"OUT must end in .pt or .safetensors, got {args.output}")
    set_threads(args.threads)
    (_encode_shards if is_parquet else _encode_file)(args, output)


def _encode_file(args: Namespace, output: Path) -> None:
    """Encode the molecules of a file in memory."""
    from tg_lpe.app.molecules import MoleculeDataset, read_molecules

    check_writable(output.resolve())
    transform, reader = _transform(args)
    dataset, vocabulary, report, used = read_molecules(
        args.input, reader=reader, smiles_column=args.smiles_column, progress=not args.quiet
    )
    for molecule in report.skipped:
        print(f"left out: {molecule}", file=sys.stderr)
    encoded = cast(MoleculeDataset, transform.encode_dataset(dataset, progress=not args.quiet))
    names = ["linear_transformer_pe", "x", "edge_index", *([EDGE_ENCODING] if args.edges else [])]
    tensors = {name: encoded._data[name] for name in names}
    tensors |= {"node_ptr": encoded.slices["x"], "edge_ptr": encoded.slices["edge_index"]}
    tensors["line"] = torch.tensor([line for line, _ in used])
    described = {"atom_types": list(vocabulary.types), "encoder": repr(transform)}
    if output.suffix == ".safetensors":
        save_tensors(output.resolve(), tensors, described)
    else:
        with replacing(output.resolve()) as temporary:
            try:
                torch.save({**tensors, **described}, temporary)
            except RuntimeError as error:  # torch raises this if the disk is full
                raise OSError(str(error)) from error
    edges = f", {tensors[EDGE_ENCODING].size(1)} for each bond" if args.edges else ""
    print(f"{len(encoded)} molecules, {tensors['x'].size(0)} atoms, {transform.k} columns{edges}: {output}")


def _encode_shards(args: Namespace, output: Path) -> None:
    """Encode molecules or graphs of Parquet files shard by shard."""
    if args.part is not None and args.ray:
        raise ValueError(f"--part {args.part} would have no effect with --ray, which divides the shards itself")
    part = re.fullmatch(r"(\d+)/(\d+)", args.part or "0/1")
    if part is None:
        raise ValueError(f"--part must be I/N, such as 0/2, got {args.part}")
    transform, reader = _transform(args)
    with open_parquet(parquet_files(args.input)[0]) as file:
        holds_graphs = args.smiles_column is None and "edge_index" in file.schema_arrow.names
    job = EncodingJob(
        args.input,
        output,
        transform,
        reader=None if holds_graphs else reader,
        smiles_column=args.smiles_column,
        rows_per_shard=ROWS if args.rows_per_shard is None else args.rows_per_shard,
    )
    done = job.run_on_ray() if args.ray else job.run((int(part[1]), int(part[2])), progress=not args.quiet)
    print(
        f"{done.num_shards:,} of {len(job.shards):,} shards encoded, {done.num_rows:,} rows, {done.num_refused:,} of "
        f"them refused: {output}"
    )


def _transform(args: Namespace) -> tuple[LinearTransformerPE, MoleculeReader | None]:
    """Make the transform of the chosen encoder, and a reader of molecules if it reads atom types."""
    chosen, reader = chosen_encoder(args), None
    if chosen is None and args.encoder["class"] is not None:
        raise ValueError("--encoder none encodes nothing")
    if isinstance(chosen, dict):
        encoder = start_encoder(chosen, DataSpec())
        if any(True for _ in encoder.parameters()):
            raise ValueError(f"{encoder_label(chosen)} has weights to learn: name a trained one with --pretrained")
    else:
        checkpoint = Checkpoint.open(chosen or DEFAULT_ENCODER).encoder
        held = load(checkpoint).model.encoder if checkpoint.is_model else load_encoder(checkpoint)
        if held is None:
            raise ValueError(f"{checkpoint.name} holds a model without an encoder")
        encoder = held
        reader = reader_of(checkpoint) if "x" in encoder.reads else None
    transform = LinearTransformerPE(args.k, encoder=encoder, edge_attr_name=EDGE_ENCODING if args.edges else None)
    return transform, reader
