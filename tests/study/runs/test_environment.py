"""The recorded conditions of a run are right and name no machine, user or folder."""

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


def test_the_environment_has_the_versions_and_settings_of_this_system():
    conditions = environment(threads=3, also={"device": "cpu"})
    assert conditions["emabank"] == emabank.__version__
    assert all(conditions[package] == metadata.version(package) for package in ("torch", "numpy"))
    assert conditions["python"] == platform.python_version()
    assert (conditions["threads"], conditions["device"]) == (3, "cpu")
    assert 1 <= conditions["cores"] <= (os.cpu_count() or 1)
    started = datetime.strptime(conditions["started"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
    assert abs((datetime.now(timezone.utc) - started).total_seconds()) < 60
    assert json.loads(json.dumps(conditions)) == conditions


def test_the_environment_names_no_machine_user_or_folder():
    text = json.dumps(environment(threads=1))
    assert str(Path.cwd()) not in text
    assert str(Path.home()) not in text or len(str(Path.home())) < 4
    if len(socket.gethostname()) > 6:
        assert socket.gethostname() not in text
    if len(getpass.getuser()) > 6:
        assert getpass.getuser() not in text
