"""The conditions of a run: what is there is right, and nobody's machine or folder is named."""

import getpass
import json
import os
import platform
import socket
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

import emabank
from emabank.study.runs.environment import environment
from tests.support.processes import run


def test_it_says_what_the_system_says():
    found = environment(threads=3, also={"device": "cpu"})
    assert found["emabank"] == emabank.__version__
    assert found["torch"] == metadata.version("torch")
    assert found["numpy"] == metadata.version("numpy")
    assert found["python"] == platform.python_version()
    assert found["threads"] == 3
    assert found["device"] == "cpu"
    assert 1 <= found["cores"] <= (os.cpu_count() or 1)
    assert found["cpu"]
    started = datetime.strptime(found["started"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
    assert abs((datetime.now(timezone.utc) - started).total_seconds()) < 60
    assert json.loads(json.dumps(found)) == found


def test_it_names_no_machine_and_no_folder():
    text = json.dumps(environment(threads=1))
    assert str(Path.cwd()) not in text
    assert str(Path.home()) not in text or len(str(Path.home())) < 4
    if len(socket.gethostname()) > 6:
        assert socket.gethostname() not in text
    if len(getpass.getuser()) > 6:
        assert getpass.getuser() not in text


def test_a_missing_package_has_no_version_and_nothing_is_imported_to_find_out():
    look = "import sys\nfrom emabank.study.runs.environment import environment, _version\nenvironment(threads=1)\n"
    finished = run(f"{look}print(_version('no-such-package'), 'torch' in sys.modules, 'numpy' in sys.modules)")
    assert finished.stdout.split() == ["None", "False", "False"], finished.stderr
