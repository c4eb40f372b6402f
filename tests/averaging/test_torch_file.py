"""Files of torch.save: what is around the weights stays, ties stay tied, and nothing in a file is ever executed."""

import argparse
import os
import pickle
import types
import zipfile
from collections import OrderedDict
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import pytest
import torch
from averaging.made import assert_same, everything_in, mean, read, state, write
from torch import nn

from emabank import BestTracker, EMABank, checkpoint
from emabank.averaging import average_checkpoints, fit_together


def saved(path: Path, content: Any, **more: Any) -> Path:
    torch.save(content, path, **more)
    return path


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 3)
        self.head = nn.Linear(3, 7, bias=False)
        self.head.weight = self.embedding.weight
        self.norm = nn.BatchNorm1d(3)


def test_tied_tensors_stay_tied_and_are_written_once(tmp_path: Path):
    paths, states = [], []
    for seed in (1, 2):
        torch.manual_seed(seed)
        states.append(Tied().state_dict())
        paths.append(saved(tmp_path / f"{seed}.pt", states[-1]))
    told: list[tuple[int, int]] = []
    average_checkpoints(paths, tmp_path / "average.pt", tell=lambda *done: told.append(done))
    made = read(tmp_path / "average.pt")
    assert made["embedding.weight"].data_ptr() == made["head.weight"].data_ptr()
    assert_same(made, mean(states, [0.5, 0.5]))
    assert told[-1][1] == sum(tensor.nbytes for name, tensor in states[0].items() if name != "head.weight")
    assert Tied().load_state_dict(made)


def test_what_is_tied_in_one_checkpoint_only_is_not_tied(tmp_path: Path):
    torch.manual_seed(0)
    one, other = Tied().state_dict(), Tied().state_dict()
    other["head.weight"] = other["head.weight"] + 1
    for name, order in (("a", (one, other)), ("b", (other, one))):
        paths = [saved(tmp_path / f"{name}{at}.pt", each) for at, each in enumerate(order)]
        average_checkpoints(paths, tmp_path / f"{name}.pt")
        assert_same(read(tmp_path / f"{name}.pt"), mean(order, [0.5, 0.5]))


def test_a_bit_that_has_flipped_in_a_value_is_found_and_the_file_named(tmp_path: Path):
    paths = [saved(tmp_path / f"{seed}.pt", {"weight": torch.full((50,), 1.5 + seed)}) for seed in (1, 2)]
    whole = paths[0].read_bytes()
    at = whole.index(torch.full((50,), 2.5).numpy().tobytes()) + 81
    paths[0].write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    assert torch.load(paths[0], weights_only=True)["weight"].isfinite().all(), "torch itself does not notice"
    with pytest.raises(ValueError, match=r"1\.pt is damaged: its content does not match its checksum"):
        average_checkpoints(paths, tmp_path / "average.pt")
    assert not (tmp_path / "average.pt").exists()
    fit_together(paths)  # no values are read for that


def test_a_file_that_was_written_without_checksums_is_averaged(tmp_path: Path):
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        paths = [saved(tmp_path / f"{seed}.pt", state(seed)) for seed in (1, 2)]
    finally:
        torch.serialization.set_crc32_options(before)
    with zipfile.ZipFile(paths[0]) as archive:
        assert archive.testzip() is not None
    average_checkpoints(paths, tmp_path / "average.pt")
    assert_same(read(tmp_path / "average.pt"), mean([state(1), state(2)], [0.5, 0.5]))


def test_module_versions_non_tensors_and_parameters_stay(tmp_path: Path):
    paths = []
    for seed in (1, 2):
        content = Tied().state_dict()
        content["extra._extra_state"] = {"seen": seed}  # type: ignore[assignment]
        content["free"] = nn.Parameter(torch.full((2,), float(seed)))
        paths.append(saved(tmp_path / f"{seed}.pt", content))
    average_checkpoints(paths, tmp_path / "average.pt")
    made = read(tmp_path / "average.pt")
    assert type(made) is OrderedDict and made._metadata["norm"] == {"version": 2}
    assert made["extra._extra_state"] == {"seen": 2}
    assert type(made["free"]) is nn.Parameter and made["free"].requires_grad and made["free"].tolist() == [1.5, 1.5]
    assert list(made) == list(torch.load(paths[-1], weights_only=True))


def test_views_and_other_orders_in_memory(tmp_path: Path):
    paths, states = [], []
    for seed in (1, 2):
        generator = torch.Generator().manual_seed(seed)
        large = torch.randn(40, 50, generator=generator)
        images = torch.randn(4, 3, 5, 5, generator=generator)
        states.append(
            {
                "part": large[3:7, 2:9],
                "turned": large.t(),
                "images": images.to(memory_format=torch.channels_last) if seed == 2 else images,
                "conjugate": torch.randn(3, dtype=torch.complex64, generator=generator).conj(),
                "expanded": torch.full((1,), float(seed)).expand(5),
            }
        )
        paths.append(saved(tmp_path / f"{seed}.pt", states[-1]))
    average_checkpoints(paths, tmp_path / "average.pt")
    assert_same(read(tmp_path / "average.pt"), mean(states, [0.5, 0.5]))


def test_what_is_around_a_state_dict_is_that_of_the_last(tmp_path: Path):
    states = [state(1), state(2)]
    paths = [
        saved(
            tmp_path / f"{at}.ckpt", {"epoch": at, "state_dict": each, "optimizer": {"state": {0: torch.ones(3) * at}}}
        )
        for at, each in enumerate(states)
    ]
    done = average_checkpoints(paths, tmp_path / "average.ckpt")
    made = read(tmp_path / "average.ckpt")
    assert done.key == "state_dict" and list(made) == ["epoch", "state_dict", "optimizer"]
    assert made["epoch"] == 1 and made["optimizer"]["state"][0].tolist() == [1, 1, 1]
    assert_same(made["state_dict"], mean(states, [0.5, 0.5]))


def test_which_state_dict_is_meant(tmp_path: Path):
    one = [saved(tmp_path / f"one-{at}.pt", {"generator": state(at), "step": at}) for at in (1, 2)]
    assert fit_together(one).key == "generator"
    two = [saved(tmp_path / f"two-{at}.pt", {"net": state(at), "ema": state(at + 5)}) for at in (1, 2)]
    with pytest.raises(ValueError, match="inside it there are state dicts under 'net', 'ema'; say which with key"):
        fit_together(two)
    average_checkpoints(two, tmp_path / "average.pt", key="ema")
    made = read(tmp_path / "average.pt")
    assert_same(made["ema"], mean([state(6), state(7)], [0.5, 0.5]))
    assert_same(made["net"], state(2))
    with pytest.raises(ValueError, match="no state dict under 'emma'; it has state dicts under 'net', 'ema'"):
        fit_together(two, key="emma")


def test_the_older_format_is_read_whole_and_this_is_told(tmp_path: Path):
    states = [state(1), state(2)]
    old = saved(tmp_path / "1.pt", states[0], _use_new_zipfile_serialization=False)
    done = average_checkpoints([old, write(tmp_path / "2.pt", states[1])], tmp_path / "average.pt")
    assert done.in_memory == (old,)
    assert_same(read(tmp_path / "average.pt"), mean(states, [0.5, 0.5]))


def test_a_file_that_was_packed_again_is_not_mapped(tmp_path: Path):
    states = [state(1), state(2)]
    paths = [write(tmp_path / f"{at}.pt", each) for at, each in enumerate(states)]
    packed = tmp_path / "packed.pt"
    with zipfile.ZipFile(paths[0]) as plain, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for entry in plain.infolist():
            archive.writestr(entry.filename, plain.read(entry), zipfile.ZIP_DEFLATED)
    done = average_checkpoints([packed, paths[1]], tmp_path / "average.pt")
    assert done.in_memory == (packed,)
    assert_same(read(tmp_path / "average.pt"), mean(states, [0.5, 0.5]))


# Files of emabank ----------------------------------------------------------------------------------------------------


def test_exported_averages_and_snapshots_are_checkpoints(tmp_path: Path):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    bank = EMABank(model, [0.5], every=1)
    tracker = BestTracker(bank, {"loss": "min"}, snapshots="each", folder=tmp_path / "snapshots")
    states = []
    for epoch in (1, 2):
        with torch.no_grad():
            model.weight.add_(1)
        bank.update()
        for suffix in (".pt", ".safetensors"):
            checkpoint.export(bank, 0.5, tmp_path / f"{epoch}{suffix}")
        states.append(bank.weights(0.5))
        tracker.observe(epoch, {name: {"loss": 1.0 / epoch} for name in bank.names})
    for suffix in (".pt", ".safetensors"):
        average_checkpoints([tmp_path / f"{at}{suffix}" for at in (1, 2)], tmp_path / f"average{suffix}")
        assert_same(read(tmp_path / f"average{suffix}"), mean(states, [0.5, 0.5]))
    snapshots = sorted((tmp_path / "snapshots").glob("*.pt"))
    assert snapshots
    average_checkpoints(snapshots, tmp_path / "snapshot.pt")
    made = read(tmp_path / "snapshot.pt")
    assert sorted(made) == ["bias", "weight"], "a plain state dict: its checksum would not fit"
    assert model.load_state_dict(made)


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_whole_bank_is_no_state_dict(tmp_path: Path, suffix: str):
    path = tmp_path / f"bank{suffix}"
    checkpoint.save(EMABank(nn.Linear(2, 2), [0.9]), path)
    with pytest.raises(ValueError, match="more than a state dict.*emabank.checkpoint.export"):
        fit_together([path, path])


# Hostile and damaged -------------------------------------------------------------------------------------------------


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (os.environ["EVIL"],)


@pytest.mark.parametrize("new", [True, False])
def test_nothing_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new: bool):
    monkeypatch.setenv("EVIL", str(tmp_path / "executed"))
    path = saved(tmp_path / "1.pt", {"weight": torch.ones(2), "evil": Evil()}, _use_new_zipfile_serialization=new)
    with pytest.raises(ValueError, match=r"1\.pt cannot be read with weights only: it holds a \S+mkdir, and would"):
        average_checkpoints([path, path], tmp_path / "average.pt")
    (tmp_path / "2.pt").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(ValueError, match=r"2\.pt "):
        fit_together([tmp_path / "2.pt", path])
    assert everything_in(tmp_path) == ["1.pt", "2.pt"]


def test_control_the_evil_file_would_do_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("EVIL", str(tmp_path / "executed"))
    torch.load(saved(tmp_path / "1.pt", {"evil": Evil()}), weights_only=False)
    assert (tmp_path / "executed").is_dir()


def test_hyper_parameters_of_other_classes_are_named(tmp_path: Path):
    content = {"state_dict": state(1), "hyper_parameters": types.SimpleNamespace(lr=0.1)}
    path = saved(tmp_path / "1.ckpt", content)
    with pytest.raises(ValueError, match="it holds a types.SimpleNamespace, .*hyper-parameters that are plain numbers"):
        fit_together([path, path])


def test_the_arguments_of_a_command_stay(tmp_path: Path):
    arguments = argparse.Namespace(lr=0.1, layers=[1, 2])
    paths = [saved(tmp_path / f"{n}.ckpt", {"state_dict": state(n), "args": arguments}) for n in (1, 2)]
    average_checkpoints(paths, tmp_path / "average.ckpt")
    assert torch.load(tmp_path / "average.ckpt", weights_only=False)["args"] == arguments
    with pytest.raises(UnpicklingError):  # it is allowed for this reading only
        torch.load(tmp_path / "average.ckpt", weights_only=True)


def test_what_the_arguments_of_a_command_hold_is_not_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("EVIL", str(tmp_path / "executed"))
    path = saved(tmp_path / "1.pt", {"state_dict": state(1), "args": argparse.Namespace(evil=Evil())})
    with pytest.raises(ValueError, match="cannot be read with weights only"):
        fit_together([path, path])
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("keep", [0, 3, 100, 0.5, 0.99])
def test_a_damaged_file_is_named(tmp_path: Path, keep: float):
    whole = write(tmp_path / "1.pt", state(1)).read_bytes()
    path = tmp_path / "2.pt"
    path.write_bytes(whole[: int(keep * len(whole)) if isinstance(keep, float) else keep])
    with pytest.raises(ValueError, match=r"2\.pt is damaged or no file of torch.save"):
        fit_together([tmp_path / "1.pt", path])


@pytest.mark.parametrize("content", [3, [torch.ones(2)], {"a": 1}, {}, torch.ones(2)])
def test_what_is_no_state_dict_is_named(tmp_path: Path, content: Any):
    path = saved(tmp_path / "1.pt", content)
    with pytest.raises(ValueError, match=r"1\.pt .*no state dict"):
        fit_together([path, path])


def test_tensors_that_are_not_plain_are_named(tmp_path: Path):
    path = saved(tmp_path / "1.pt", {"odd": torch.eye(3).to_sparse()})
    with pytest.raises(ValueError, match="'odd' is a Tensor of layout torch.sparse_coo, .*only plain dense tensors"):
        fit_together([path, path])


def test_eight_bits_are_refused(tmp_path: Path):
    path = saved(tmp_path / "1.pt", {"small": torch.ones(3).to(torch.float8_e4m3fn)})
    with pytest.raises(ValueError, match="'small' is float8_e4m3fn .3., which means nothing without its scales"):
        fit_together([path, path])
