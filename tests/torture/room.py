"""For the torture tests: a folder of this process for all that has to be made once, removed with it."""

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path


@cache
def room() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="emabank-torture-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
