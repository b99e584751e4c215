"""``tg-lpe show``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jsonargparse import Namespace

from tg_lpe.app import plot
from tg_lpe.app.cli.options import Chosen, add_encoder, parse_rest
from tg_lpe.app.cli.parser import Parser
from tg_lpe.app.cli.pretrained import fixed_encoder
from tg_lpe.checkpoints.files import check_writable
from tg_lpe.transforms.linear_transformer_pe import DEFAULT_ENCODER


def parse(parser: Parser, words: Sequence[str]) -> Namespace:
    """Declare the options of the command and parse them."""
    parser.usage = "tg-lpe show SMILES [options]"
    parser.epilog = (
        "examples: tg-lpe show 'CC(=O)Nc1ccc(O)cc1' --pretrained gram-k8, "
        "tg-lpe show 'c1ccccc1O' --encoder LaplacianEigenvectors --encoder.k 3 --out phenol.png"
    )
    parser.add_argument("smiles", metavar="SMILES", help="molecule to draw")
    chosen = Chosen(parser, words, "encoder", "pretrained")
    add_encoder(parser, chosen, f"default: the pretrained {DEFAULT_ENCODER}")
    parser.add_argument("--channels", type=int, nargs="+", metavar="N", help="channels to draw, from 0 (default: 0-5)")
    parser.add_argument("--columns", type=int, default=3, metavar="N", help="drawings in each row")
    parser.add_argument("--out", default="molecule.svg", metavar="FILE", help=".svg or .png file to write")
    return parse_rest(parser, chosen)


def run(args: Namespace) -> None:
    """Draw a molecule with its atoms and bonds coloured by the channels of an encoding."""
    if not args.out.endswith((".svg", ".png")):
        raise ValueError(f"--out must end in .svg or .png, got {args.out}")
    check_writable(Path(args.out).resolve())
    encoder, reader, is_canonical = fixed_encoder(args)
    picture = plot.molecule(
        args.smiles,
        encoder,
        vocabulary=None if reader is None else reader.vocabulary,
        canonical=is_canonical,
        channels=args.channels,
        columns=args.columns,
    ).save(args.out)
    print(f"{args.smiles}: {picture}")
