"""The integrations under their frameworks' own DistributedDataParallel and FSDP2: two real processes with gloo."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import emabank
from tests.on_ranks import frameworks
from tests.support.oracle import assert_equal

ROOT = Path(__file__).parents[2]
SOURCE = Path(emabank.__file__).parents[1]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def run_torchrun(script: Path, folder: Path) -> None:
    for framework in frameworks.FRAMEWORKS:
        pytest.importorskip(framework, reason=f"the extra {framework} is not installed")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(SOURCE), str(ROOT)]),
        "OMP_NUM_THREADS": "1",
        "ACCELERATE_USE_CPU": "true",
    }
    command = [sys.executable, *TORCHRUN, str(script), str(folder)]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400, check=False)
    assert process.returncode == 0, process.stdout + process.stderr


@pytest.mark.slow
def test_averages_are_sharded_evaluated_and_resumed_under_fsdp2(tmp_path: Path):
    run_torchrun(Path(frameworks.__file__).with_name("sharded_frameworks.py"), tmp_path)


@pytest.mark.slow
def test_both_ranks_have_the_same_averages_and_the_metrics_of_all_data(tmp_path: Path):
    run_torchrun(Path(frameworks.__file__), tmp_path)
    for framework in frameworks.FRAMEWORKS:
        first, second = (torch.load(tmp_path / f"{framework}-{rank}.pt", weights_only=True) for rank in (0, 1))
        assert first["steps"] == second["steps"] == 12, framework
        for key in ("averages", "best", "tracked"):
            assert_equal(first[key], second[key], msg=lambda text, framework=framework: f"{framework}: {text}")
        for name in frameworks.AVERAGES:  # each rank saw half of the data
            assert first["tracked"][name] == pytest.approx(first["by_hand"][name], rel=1e-4), framework
        weights = [key for key in first["live"] if "running" not in key]
        assert_equal({key: first["live"][key] for key in weights}, {key: second["live"][key] for key in weights})
        assert any(not torch.equal(first["live"][key], first["averages"]["slow"][key]) for key in weights), framework
