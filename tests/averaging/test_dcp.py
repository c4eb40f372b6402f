"""Folders of torch.distributed.checkpoint, written by two processes and averaged by one."""

import errno
import io
import os
import pickle
import resource
import subprocess
import sys
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from emabank.averaging import average_checkpoints, find_checkpoints, plan_average
from emabank.averaging.dcp import _DcpUnpickler
from tests.averaging.test_average import MEASURE, TENSOR
from tests.on_ranks import dcp_folders
from tests.support.files import assert_average, everything_in, mean
from tests.support.ranks import FSDP, run_on_ranks

pytestmark = FSDP
Training = tuple[Path, list[dict[str, torch.Tensor]]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Training:
    folder = tmp_path_factory.mktemp("dcp")
    (folder / "store").mkdir()
    weights = run_on_ranks(dcp_folders.write_training, folder / "run", (2, 4, 10), folder=folder / "store")[0]
    return folder / "run", list(weights.values())


def test_checkpoints_of_a_sharded_training_are_averaged(trained: Training, tmp_path: Path) -> None:
    run, states = trained
    paths = find_checkpoints([run]).checkpoints
    assert [path.name for path in paths] == ["step-2", "step-4", "step-10"]
    plan = average_checkpoints(paths, tmp_path / "average", [0.5, 0.3, 0.2])
    assert plan.key == "model" and plan.in_memory == ()
    assert everything_in(tmp_path) == ["average", "average/.metadata", "average/__0_0.distcp"]
    expected = mean(states, [0.5, 0.3, 0.2])
    (tmp_path / "store").mkdir()
    for loaded in run_on_ranks(dcp_folders.load_sharded, tmp_path / "average", folder=tmp_path / "store"):
        assert_average(loaded, expected)
    average_checkpoints(paths, tmp_path / "average.safetensors", [0.5, 0.3, 0.2])
    assert_average(load_file(tmp_path / "average.safetensors"), expected)
    assert_average(load_file(tmp_path / "average.safetensors"), loaded)
    plan_average([tmp_path / "average", paths[0]])  # the average can be read again
    with pytest.raises(ValueError, match="^key must be one of 'model' in .*step-2; got 'ema'"):
        plan_average(paths, key="ema")


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # of dcp.load, in a process without a group
def test_shards_by_columns_without_a_key_are_averaged(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    run_on_ranks(dcp_folders.write_columns, tmp_path / "run", folder=tmp_path / "store")
    plan = average_checkpoints(find_checkpoints([tmp_path / "run"]).checkpoints, tmp_path / "average")
    assert plan.key is None and plan.averaged == ("columns", "rows")
    state = {name: torch.zeros(5, 7) for name in plan.averaged}
    dcp.load(state, checkpoint_id=tmp_path / "average", no_dist=True)
    expected = 1.5 * torch.arange(35.0).view(5, 7)
    assert torch.equal(state["columns"], expected) and torch.equal(state["rows"], expected)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("key", ["model", None])
def test_extra_state_comes_from_the_last_checkpoint(tmp_path: Path, key: str | None) -> None:
    def state(step: int) -> dict[str, Any]:
        tensors = {"weight": torch.full((3,), float(step))}
        values = {**tensors, "_extra_state": {"scale": step}, "layer._extra_state": Path(f"{step}")}
        return {key: values} if key else values

    for step in (1, 2):
        writer = FileSystemWriter(tmp_path / f"step-{step}", single_file_per_rank=False, sync_files=False)
        dcp.save(state(step), storage_writer=writer, no_dist=True)
    average_checkpoints([tmp_path / "step-1", tmp_path / "step-2"], tmp_path / "average")
    loaded = state(0)
    dcp.load(loaded, checkpoint_id=tmp_path / "average", no_dist=True)
    values = loaded[key] if key else loaded
    assert values.pop("weight").tolist() == [1.5, 1.5, 1.5]
    assert values == {"_extra_state": {"scale": 2}, "layer._extra_state": Path("2")}
    for file in (tmp_path / "step-2").glob("*.distcp"):
        content = file.read_bytes()
        file.write_bytes(content[: len(content) // 2])
        with pytest.raises(ValueError, match="step-2 is damaged"):
            plan_average([tmp_path / "step-2"])
        file.write_bytes(content)


def test_the_file_by_which_lightning_knows_a_folder_is_copied(trained: Training, tmp_path: Path) -> None:
    paths = _copy_run(trained[0], tmp_path)
    for epoch, path in enumerate(paths):
        torch.save({"epoch": epoch}, path / "meta.pt")
    average_checkpoints(paths, tmp_path / "average")
    assert torch.load(tmp_path / "average/meta.pt", weights_only=True) == {"epoch": 2}


@pytest.mark.skipif(sys.platform != "linux", reason="limits the size of files")
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_failed_write_names_the_output_and_leaves_no_files(tmp_path: Path) -> None:
    paths = [tmp_path / "step-1", tmp_path / "step-2"]
    for path in paths:
        dcp.save({"weight": torch.ones(100_000)}, checkpoint_id=path, no_dist=True)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_100, limits[1]))  # the values fit, but not the file with them
    try:
        with pytest.raises(OSError, match="average") as caught:
            average_checkpoints(paths, tmp_path / "average")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.errno == errno.EFBIG
    assert sorted(tmp_path.iterdir()) == paths


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_folder_may_have_more_files_than_may_be_open(tmp_path: Path) -> None:
    for step in (1, 2):
        state = {f"weight-{number}": torch.full((2,), float(step)) for number in range(60)}
        writer = FileSystemWriter(tmp_path / f"step-{step}", single_file_per_rank=False, sync_files=False)
        dcp.save(state, storage_writer=writer, no_dist=True)
    opened = len(os.listdir("/dev/fd"))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 40, limits[1]))
    try:
        average_checkpoints([tmp_path / "step-1", tmp_path / "step-2"], tmp_path / "average.safetensors")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert load_file(tmp_path / "average.safetensors")["weight-59"].tolist() == [1.5, 1.5]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("out", ["large", "large.safetensors"])
def test_memory_stays_below_one_tensor(tmp_path: Path, out: str) -> None:
    (tmp_path / "store").mkdir()
    run_on_ranks(dcp_folders.write_large, tmp_path, TENSOR // 2 // 1024, folder=tmp_path / "store")
    code = MEASURE.replace("small-{step}{suffix}", "large-{step}").replace("large-{step}{suffix}", "large-{step}")
    code = code.replace("small{suffix}", "warmed").replace("large{suffix}", out)
    process = subprocess.run([sys.executable, "-c", code, str(tmp_path), ""], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    plan = plan_average([tmp_path / f"large-{step}" for step in (1, 2, 3)])
    assert plan.nbytes == 2 * TENSOR
    assert int(process.stdout) < plan.memory < TENSOR


def test_a_flipped_bit_is_detected(trained: Training, tmp_path: Path) -> None:
    paths = _copy_run(trained[0], tmp_path)
    file = paths[0] / "__1_0.distcp"
    content = bytearray(file.read_bytes())
    values = trained[1][0]["middle.0.weight"][-3:].contiguous().numpy().tobytes()
    content[content.index(values) + 9] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match="step-2 is damaged: 'middle.0.weight'"):
        average_checkpoints(paths, tmp_path / "average")
    assert not (tmp_path / "average").exists()


@pytest.mark.parametrize("module", ["pathlib", "pathlib._local"], ids=["most", "3.13"])
def test_paths_are_read_whatever_python_wrote_them(module: str) -> None:
    content = f"c{module}\nPosixPath\n(S'a'\nS'b'\ntR.".encode()
    assert _DcpUnpickler(io.BytesIO(content)).load() == PurePosixPath("a/b")


def test_code_is_not_executed_and_damaged_files_are_refused(trained: Training, tmp_path: Path) -> None:
    paths = _copy_run(trained[0], tmp_path)
    (paths[0] / ".metadata").write_bytes(pickle.dumps(_Evil()))
    with pytest.raises(ValueError, match="step-2 .*print"):
        plan_average(paths)
    for name in (".metadata", "__0_0.distcp"):
        content = (paths[1] / name).read_bytes()
        (paths[1] / name).write_bytes(content[: len(content) // 4])
        with pytest.raises(ValueError, match="step-4"):
            plan_average(paths[1:])
        (paths[1] / ".metadata").write_bytes((trained[0] / "step-4/.metadata").read_bytes())
    (paths[2] / "__1_0.distcp").unlink()
    with pytest.raises(FileNotFoundError):
        plan_average(paths[2:])


class _Evil:
    def __reduce__(self) -> object:
        return print, ("executed",)


def _copy_run(run: Path, folder: Path) -> list[Path]:
    for source in run.iterdir():
        (folder / source.name).mkdir()
        for file in source.iterdir():
            (folder / source.name / file.name).write_bytes(file.read_bytes())
    return [folder / name for name in ("step-2", "step-4", "step-10")]
