"""What an import loads: the library needs only torch, and the command's help does not even need that.

Each test uses a fresh interpreter.
"""

import json
from pathlib import Path

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
COMMANDS = """
import sys
from emabank.study.commands import main
for words, expected in {commands}:
    try:
        code = main(words.split())
    except SystemExit as stopped:
        code = stopped.code
    assert code == expected, f"{{words}} ended with {{code}}"
    loaded = {heavy} & set(sys.modules)
    assert not loaded, f"{{words}} loaded {{loaded}}"
"""


def loaded_by(code: str) -> set[str]:
    """The modules loaded by code in a fresh interpreter."""
    finished = run(f"{code}\nimport json, sys\nprint('\\n' + json.dumps(sorted(sys.modules)))")
    assert finished.returncode == 0, finished.stderr
    return set(json.loads(finished.stdout.splitlines()[-1]))


def test_importing_the_package_loads_no_torch():
    assert "torch" not in loaded_by("import emabank; emabank.__version__; dir(emabank)")


def test_every_public_name_resolves_and_an_unknown_one_is_an_attribute_error():
    finished = run(
        "import emabank\nfor name in emabank.__all__: assert getattr(emabank, name).__name__ == name\nemabank.EMABanc"
    )
    assert "AttributeError: module 'emabank' has no attribute 'EMABanc'" in finished.stderr


def test_the_library_loads_nothing_of_the_study_or_the_integrations():
    loaded = loaded_by(USE_THE_LIBRARY)
    assert not {name for name in loaded if name.startswith(("emabank.study", "emabank.integrations"))}
    assert not loaded & {"tyro", "rich", "matplotlib", "lightning", "pytorch_lightning", "transformers", "accelerate"}


def test_the_library_works_with_torch_alone():
    finished = run(USE_THE_LIBRARY, blocked=STUDY_PACKAGES)
    assert finished.returncode == 0, finished.stderr


# What a command loads ------------------------------------------------------------------------------------------------


LIGHT_COMMANDS = [
    ("", 0),
    ("--help", 0),
    ("--version", 0),
    ("demo --help", 0),
    ("list --scale paper", 0),
    ("lst", 2),
    ("run nonsense", 2),
    ("run dynamics --set colour=red", 2),
    ("protocol --epochs none", 2),
    ("decay 0.998", 0),
    ("decay --half-life 693 --every 4 --steps-per-epoch 391", 0),
    ("average --help", 0),
    ("list --help", 0),
    ("run all --help", 0),
    ("report --help", 0),
    ("claims --help", 0),
    ("status --help", 0),
    ("protocol --help", 0),
    ("data --help", 0),
]


def test_commands_that_only_print_load_nothing_heavy():
    finished = run(COMMANDS.format(commands=LIGHT_COMMANDS, heavy=HEAVY))
    assert finished.returncode == 0, finished.stderr


def test_data_check_loads_nothing_heavier_than_numpy():
    finished = run(COMMANDS.format(commands=[("data check digits", 0)], heavy=HEAVY - {"numpy"}))
    assert finished.returncode == 0, finished.stderr


def test_status_loads_no_torch(tmp_path: Path):
    (tmp_path / "runs").mkdir()
    commands = [("status nowhere", 1), (f"status {tmp_path / 'runs'}", 0)]
    finished = run(COMMANDS.format(commands=commands, heavy={"torch"}))  # the report loads pandas
    assert finished.returncode == 0, finished.stderr


def test_the_report_loads_no_torch():
    report = "import emabank.study.report.demo, emabank.study.report.write, emabank.study.reporting"
    assert "torch" not in loaded_by(report)
