"""Kill -9 at any moment, in real processes: every file of a run stays whole, and the run resumes."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

from emabank.study.runs import writer
from emabank.study.runs.writer import RunFolder, open_run

SOURCE = str(Path(writer.__file__).parents[3])

# A separate process forks its victims: torch is imported once, and no thread exists when it forks.
KILL = """
import os, random, signal, sys, time, warnings
from pathlib import Path
import numpy as np, torch
from emabank.study.runs.archive import load_results
from emabank.study.runs.rows import Row
from emabank.study.runs.storage import read_state
from emabank.study.runs.writer import RunFolder, open_run

warnings.simplefilter("error")
root, rounds, config = Path(sys.argv[1]), int(sys.argv[2]), {"epochs": 10**6}
random.seed(0)
folder = RunFolder.of(root, config)
victim = dict(dataset="d", network="n", trained_on="80%", seed=0, weights="live", batchnorm="own", selected_by=None,
              split="val", metric="loss", other=None)

def train():
    with open_run(root, config, threads=1) as run:
        state = run.load_checkpoint() or {"step": 0}
        for step in range(state["step"] + 1, 10**6):
            run.save_checkpoint({"step": step, "tensor": torch.full((20_000,), step)})
            Path(root, "saved").write_text(str(step))
            run.save_fork(1, {"tensor": torch.full((20_000,), step)})
            run.save_snapshot("live", {"a": torch.full((20_000,), step)}, metadata={"step": step})
            run.save_predictions("live", {"val": (np.full((5_000, 2), step), np.zeros(5_000, int))})
            run.save_history([step] * 5_000)
            run.write_rows([Row(run=run.id, epoch=step, value=float(i), **victim) for i in range(100)])

def check_equal(values):
    values = set(np.asarray(values).ravel().tolist())
    assert len(values) == 1, values

reached = 0
for number in range(rounds):
    Path(root, "saved").unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        try:
            train()
        finally:
            os._exit(1)
    while not Path(root, "saved").exists():
        assert os.waitpid(child, os.WNOHANG) == (0, 0), "the victim ended on its own"
        time.sleep(0.001)
    time.sleep(random.uniform(0, 0.1))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert folder.state() == "waiting"
    for name in folder.snapshots():
        tensors, notes = folder.load_snapshot(name)
        check_equal(tensors["a"])
        assert tensors["a"][0] == notes["step"]
    for name in folder.predictions():
        check_equal(folder.load_predictions(name)["val"].logits)
    if (folder.path / "forks" / "epoch-1.pt").exists():
        check_equal(read_state(folder.fork_path(1))["tensor"])
    if (folder.path / "history.json").exists():
        check_equal(folder.history())
    assert len(load_results(root)) in (0, 100)
    with open_run(root, config, threads=1) as run:
        state = run.load_checkpoint()
        assert not list(run.path.rglob(".*"))
    check_equal(state["tensor"])
    assert state["tensor"][0] == state["step"] >= max(1, reached)
    reached = state["step"]
print(reached)
"""


def test_a_run_killed_at_any_moment_has_whole_files_and_resumes(tmp_path: Path):
    environment = {**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", KILL, str(tmp_path), "10"]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert finished.returncode == 0, finished.stderr
    assert int(finished.stdout) >= 10


def test_opening_a_run_removes_the_leftovers_of_a_kill_during_a_write(tmp_path: Path):
    code = f"""
import os, signal
from emabank.study.runs.writer import open_run
with open_run({str(tmp_path)!r}, {{"epochs": 2}}, threads=1) as run:
    run.save_history([1])
    os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
    run.save_history([2])
"""
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    assert subprocess.run([sys.executable, "-c", code], env=environment, timeout=120).returncode == -9
    folder = RunFolder.of(tmp_path, {"epochs": 2})
    assert len(list(folder.path.glob(".*.tmp"))) == 1
    assert folder.history() == [1]
    assert folder.state() == "waiting"
    with warnings.catch_warnings(), open_run(tmp_path, {"epochs": 2}, threads=1) as run:
        warnings.simplefilter("error")
        assert not list(run.path.glob(".*"))
        assert run.history() == [1]
