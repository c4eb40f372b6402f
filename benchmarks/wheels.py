"""Loads one file out of a wheel, unmodified, without installing it: timm and diffusers cannot be installed everywhere.

Nothing of theirs is kept in this repository. What the file imports from its own package is replaced by empty stand-ins.
"""

from __future__ import annotations

import os
import subprocess
import sys
import types
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from emabank.bench.peers import NotAvailable, Peer, all_peers, installed, installed_version

# What is downloaded when the folder holds no wheel of that name; a wheel that is there is taken whatever its version.
PINNED = {"timm": "timm==1.0.30", "diffusers": "diffusers==0.42.1"}
# What the file of a package imports of its own package; for diffusers this spares it a look for DeepSpeed at each step.
STAND_INS = {"timm": (), "diffusers": ("models", "pipelines", "schedulers", "utils", "utils.torch_utils")}


class _StandIn(types.ModuleType):
    """A module in which every name exists: `is_..._available` answers no, everything else is an empty class."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        if name.startswith("is_"):
            return lambda: False
        return type(name, (), {})


def default_folder() -> Path:
    """Where downloaded wheels are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "emabank" / "wheels"


def find_wheel(package: str, folder: Path) -> Path:
    """The newest wheel of `package` in `folder`; downloaded into it when there is none."""
    found = sorted(folder.glob(f"{package}-*.whl"), key=lambda path: path.stat().st_mtime)
    if found:
        return found[-1]
    print(f"no wheel of {package} in {folder}: downloading {PINNED[package]}", file=sys.stderr)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    try:
        subprocess.run([*command, "-d", str(folder), PINNED[package]], check=True, timeout=120, capture_output=True)
    except (subprocess.SubprocessError, OSError) as error:
        raise NotAvailable(f"no wheel in {folder}, and it could not be downloaded") from error
    return next(iter(folder.glob(f"{package}-*.whl")))


def version(wheel: Path) -> str:
    """The version that a wheel's file name carries."""
    return wheel.name.split("-")[1]


def load_file(wheel: Path, member: str, stand_ins: tuple[str, ...] = ()) -> types.ModuleType:
    """Execute one file of a wheel as a module.

    Args:
        member: path inside the wheel, `timm/utils/model_ema.py`.
        stand_ins: modules of its own package that it imports, relative to it: `("models", "utils")`.
    """
    with zipfile.ZipFile(wheel) as archive:
        source = archive.read(member).decode()
    package = "_wheel_" + member.removesuffix(".py").replace("/", "_")
    module = types.ModuleType(f"{package}.file")
    module.__package__ = package
    parent = types.ModuleType(package)
    parent.__path__ = []  # a package, so that relative imports look for the stand-ins below
    sys.modules[package] = parent
    sys.modules[module.__name__] = module
    for name in stand_ins:
        stand_in = _StandIn(f"{package}.{name}")
        stand_in.__path__ = []
        sys.modules[stand_in.__name__] = stand_in
    try:
        exec(compile(source, f"{wheel}/{member}", "exec"), module.__dict__)
    except ImportError as error:
        raise NotAvailable(f"its file needs {error.name}, which is not installed") from error
    return module


def finder(folder: Path) -> Callable[[str, str], Any]:
    """Gives a module of a package: for what is pinned here out of its wheel in `folder`, else what is installed."""

    def find(package: str, module: str) -> Any:
        if package not in PINNED:
            return installed(package, module)
        return load_file(find_wheel(package, folder), module.replace(".", "/") + ".py", STAND_INS[package])

    return find


def versions_in(folder: Path) -> Callable[[str], str]:
    """Gives the version of a package, where `finder(folder)` takes it from."""

    def find(package: str) -> str:
        try:
            return f"{version(find_wheel(package, folder))} (one file of its wheel)"
        except NotAvailable:
            return "not installed"

    return lambda package: find(package) if package in PINNED else installed_version(package)


def chosen_peers(folder: Path, only: Sequence[str] | None = None) -> list[Peer]:
    """All peers, or those whose name contains one of these texts."""
    found = all_peers(finder(folder))
    return [peer for peer in found if not only or any(text.lower() in peer.name.lower() for text in only)]
