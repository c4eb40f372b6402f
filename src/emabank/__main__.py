"""`python -m emabank` is the command `emabank`."""

import sys

from emabank.cli import main

if __name__ == "__main__":
    sys.exit(main())
