"""Kill -9 at any moment, in real processes: every file of a run stays whole, and the run goes on."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

from emabank.study.runs import writer
from emabank.study.runs.writer import RunFolder, open_run

SOURCE = str(Path(writer.__file__).parents[3])

# In one process of its own that forks its victims: torch is imported once, and no thread is forked away from.
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

def whole(values):
    values = set(np.asarray(values).ravel().tolist())
    assert len(values) == 1, values

leftovers = reached = 0
for number in range(rounds):
    Path(root, "saved").unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        try:
            train()
        finally:
            os._exit(1)
    while not Path(root, "saved").exists():
        assert os.waitpid(child, os.WNOHANG) == (0, 0), "the victim ended by itself"
        time.sleep(0.001)
    time.sleep(random.uniform(0, 0.1))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert folder.state() == "waiting"
    leftovers += len([path for path in folder.path.rglob(".*")])
    for name in folder.snapshots():
        tensors, notes = folder.load_snapshot(name)
        whole(tensors["a"])
        assert tensors["a"][0] == notes["step"]
    for name in folder.predictions():
        whole(folder.load_predictions(name)["val"].logits)
    if (folder.path / "forks" / "epoch-1.pt").exists():
        whole(read_state(folder.fork_path(1))["tensor"])
    if (folder.path / "history.json").exists():
        whole(folder.history())
    assert len(load_results(root)) in (0, 100)
    with open_run(root, config, threads=1) as run:
        state = run.load_checkpoint()
        assert not list(run.path.rglob(".*"))
    whole(state["tensor"])
    assert state["tensor"][0] == state["step"] >= max(1, reached)
    reached = state["step"]
print(reached, leftovers)
"""


def kill_in_rounds(root: Path, rounds: int) -> tuple[int, int]:
    environment = {**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", KILL, str(root), str(rounds)]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert finished.returncode == 0, finished.stderr
    reached, leftovers = map(int, finished.stdout.split())
    return reached, leftovers


def test_killed_at_any_moment_every_file_is_whole_and_the_run_goes_on(tmp_path: Path):
    reached, _ = kill_in_rounds(tmp_path, 10)
    assert reached >= 10


def test_after_a_kill_in_the_middle_of_a_write_the_next_opening_cleans_up(tmp_path: Path):
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
