"""``tg-lpe zoo``."""

from __future__ import annotations

from collections.abc import Sequence

from jsonargparse import Namespace

from tg_lpe.app.cli.parser import Parser


def parse(parser: Parser, words: Sequence[str]) -> Namespace:
    """Declare the options of the command and parse them."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="checkpoint whose whole card to print")
    return parser.parse_args(words)


def run(args: Namespace) -> None:
    """List the checkpoints that ship with the package, or print one card."""
    import json
    import textwrap

    from tg_lpe.app.training.metrics import METRICS
    from tg_lpe.app.training.units import figures_text
    from tg_lpe.checkpoints import zoo

    if args.name is not None:
        print(json.dumps(zoo.card(args.name), indent=2))
        return
    for name in zoo.names():
        card = zoo.card(name)
        text = card["summary"]
        if "task" in card:
            metric = card["task"]["metric"]
            test = {f"test_{metric}": card["metrics"][f"test_{metric}"]}
            figure = figures_text({**card, "metrics": test}).removeprefix(f"test_{metric}")
            text += f" Test {METRICS[metric].title}{figure}."
        print(f"{name}  ({card['class']}, {card['num_parameters']:,} parameters)")
        print(textwrap.fill(text, 100, initial_indent="    ", subsequent_indent="    "))
    print("\ntg-lpe zoo NAME prints a whole card: data, command and all figures.")
