"""What an import loads: the library needs torch alone, the command's help not even that.

Each property is watched in a fresh interpreter, and each watch is shown able to fail by a control beside it.
"""

import json
from pathlib import Path

import pytest

from tests.support.processes import run

STUDY_PACKAGES = ("tyro", "rich", "numpy", "matplotlib", "safetensors")
USE_THE_LIBRARY = """
import torch, emabank
model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
bank = emabank.EMABank(model, [0.9, emabank.Uniform()], every=1)
bank.update()
emabank.recalibrate_batchnorm(bank, [torch.randn(8, 4)])
tracker = emabank.BestTracker(bank, {"accuracy": "max"})
tracker.observe(1, {name: {"accuracy": 0.5} for name in bank.names})
with bank.applied(0.9, batchnorm="recomputed"):
    model(torch.randn(2, 4))
bank.load_state_dict(bank.state_dict())
"""
HEAVY = {"torch", "numpy", "pandas", "matplotlib"}
COMMAND = """
from emabank.study.cli import main
try:
    code = main({words})
except SystemExit as stopped:
    code = stopped.code
assert code == {code}, f"it ended with {{code}}"
"""


def loaded_by(code: str) -> set[str]:
    """The modules that are there after running code in a fresh interpreter."""
    finished = run(f"{code}\nimport json, sys\nprint('\\n' + json.dumps(sorted(sys.modules)))")
    assert finished.returncode == 0, finished.stderr
    return set(json.loads(finished.stdout.splitlines()[-1]))


def test_importing_the_package_loads_no_torch():
    assert "torch" not in loaded_by("import emabank; emabank.__version__; dir(emabank)")


def test_control_a_public_name_loads_torch():
    assert "torch" in loaded_by("import emabank; emabank.EMABank")


def test_every_public_name_resolves():
    finished = run("import emabank\nfor name in emabank.__all__: assert getattr(emabank, name).__name__ == name")
    assert finished.returncode == 0, finished.stderr


def test_an_unknown_name_is_an_attribute_error():
    finished = run("import emabank; emabank.EMABanc")
    assert "AttributeError: module 'emabank' has no attribute 'EMABanc'" in finished.stderr


def test_the_library_loads_nothing_of_the_study():
    loaded = loaded_by(USE_THE_LIBRARY)
    assert not {name for name in loaded if name.startswith("emabank.study")}
    assert not loaded & {"tyro", "rich", "matplotlib"}


def test_nobody_imports_the_integrations():
    loaded = loaded_by(f"import emabank.study.cli\n{USE_THE_LIBRARY}")
    assert not {name for name in loaded if name.startswith("emabank.integrations")}
    assert not loaded & {"lightning", "pytorch_lightning", "transformers", "accelerate"}


def test_control_an_integration_is_seen_when_it_is_loaded():
    assert "emabank.integrations._session" in loaded_by("import emabank.integrations._session")


def test_control_the_study_is_seen_when_it_is_loaded():
    loaded = loaded_by("import emabank.study.progress, emabank.study.report.figures.draw")
    assert {"emabank.study.progress", "rich", "matplotlib"} <= loaded


def test_the_library_works_with_torch_alone():
    finished = run(USE_THE_LIBRARY, blocked=STUDY_PACKAGES)
    assert finished.returncode == 0, finished.stderr


@pytest.mark.parametrize("package", STUDY_PACKAGES)
def test_control_a_blocked_package_cannot_be_imported(package: str):
    assert f"No module named '{package}'" in run(f"import {package}", blocked=STUDY_PACKAGES).stderr


def test_control_the_library_does_not_work_without_torch():
    assert "No module named 'torch'" in run(USE_THE_LIBRARY, blocked=("torch",)).stderr


# What a command loads ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("", 0),
        ("--help", 0),
        ("-h", 0),
        ("--version", 0),
        ("demo --help", 0),
        ("list", 0),
        ("list --scale small", 0),
        ("list --scale paper", 0),
        ("lst", 2),
        ("--scale demo", 2),
        ("list --scale huge", 2),
        ("list extra", 2),
        ("run", 2),
        ("run nonsense", 2),
        ("run dynamics --set colour=red", 2),
        ("protocol --epochs none", 2),
        ("status nowhere", 1),
        ("decay 0.998", 0),
        ("decay --half-life 693 --every 4 --steps-per-epoch 391", 0),
        ("decay 2", 2),
        ("average", 2),
        ("average --help", 0),
    ],
)
def test_what_only_says_something_loads_no_torch(words: str, code: int):
    heavy = {"torch"} if words.startswith("status") else HEAVY  # of which the report loads some
    assert not loaded_by(COMMAND.format(words=words.split(), code=code)) & heavy


def test_a_look_at_a_folder_of_runs_loads_no_torch(tmp_path: Path):
    (tmp_path / "runs").mkdir()
    assert "torch" not in loaded_by(COMMAND.format(words=["status", str(tmp_path / "runs")], code=0))


def test_control_a_plan_that_is_measured_loads_torch(tmp_path: Path):
    words = ["run", "lr-search", "--dry-run", "--runs", str(tmp_path), "--set", "width=4", "subset=60"]
    assert "torch" in loaded_by(COMMAND.format(words=words, code=0))


def test_control_another_exit_code_is_seen():
    with pytest.raises(AssertionError, match="it ended with 2"):
        loaded_by(COMMAND.format(words=["lst"], code=0))


def test_control_what_a_command_runs_loads_torch():
    assert {"torch", "numpy", "matplotlib"} <= loaded_by(
        "from emabank.study.cli import main\nimport emabank.study.demo"
    )


def test_the_report_loads_no_torch():
    report = "import emabank.study.report.demo.picture, emabank.study.report.build, emabank.study.reporting"
    assert "torch" not in loaded_by(report)
