"""`python -m emabank.study` is the command `emabank`."""

import sys

from emabank.study.cli import main

if __name__ == "__main__":
    sys.exit(main())
