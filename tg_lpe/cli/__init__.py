"""The command line: ``tg-lpe train | pretrain | encode | predict | show | report | zoo | demo``.

Options of encoders, tasks, models and the loop are the arguments of their constructors, read from the
signatures by jsonargparse: a new argument, and a new class, need no line here.
"""

from tg_lpe.cli.command_line import main

__all__ = ["main"]
