"""``tg-lpe zoo``."""

from __future__ import annotations

from collections.abc import Sequence

from jsonargparse import Namespace

from tg_lpe.cli.parser import Parser


def parse(parser: Parser, words: Sequence[str]) -> Namespace:
    """Declare the options of the command and parse them."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="checkpoint whose whole card to print")
    return parser.parse_args(words)


def run(args: Namespace) -> None:
    """List the checkpoints that ship with the package."""
    import json

    from tg_lpe import zoo

    if args.name is not None:
        print(json.dumps(zoo.card(args.name), indent=2))
        return
    cards = {name: zoo.card(name) for name in zoo.names()}
    wide = max(len(name) for name in cards)
    for name, card in cards.items():
        figures = zoo.figures_text(card)
        print(f"{name:{wide}}  {card['class']}, {card['num_parameters']:,} parameters: {card['summary']} ({figures})")
