"""The example of several processes: under a real torchrun, as its first lines say."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import torch

from emabank.study.data.digits import digits_dataset
from tests.support.processes import SOURCE

EXAMPLE = Path(__file__).parents[2] / "examples" / "data_parallel.py"


def test_it_runs_under_torchrun_and_saves_what_it_says(tmp_path: Path):
    out = tmp_path / "averaged.pt"
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(EXAMPLE), str(out)]
    variables = {**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *words], env=variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (said,) = done.stdout.splitlines()
    model = runpy.run_path(str(EXAMPLE))["make_model"]()
    model.load_state_dict(torch.load(out, weights_only=True))
    tested = digits_dataset().test
    with torch.no_grad():
        right = (model.eval()(tested.images.float() / 16.0).argmax(1) == tested.labels).float().mean()
    assert said == f"ema-0.96: {right:.1%} on test images"
    assert right > 0.5
