"""A fresh Python beside the tests, with chosen packages missing."""

import subprocess
import sys


def run(code: str, *, blocked: tuple[str, ...] = ()) -> "subprocess.CompletedProcess[str]":
    """Run code in a fresh interpreter that has none of the blocked packages."""
    block = f"""
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocked())
"""
    return subprocess.run([sys.executable, "-c", block + code], capture_output=True, text=True, timeout=120)
