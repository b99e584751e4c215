"""Run the command line as ``python -m tg_lpe.app.cli``."""

import sys

from tg_lpe.app.cli import main

if __name__ == "__main__":
    sys.exit(main())
