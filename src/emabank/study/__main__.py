"""`python -m emabank.study` is the command `emabank`."""

import sys

from emabank.study.commands import main

if __name__ == "__main__":
    sys.exit(main())
