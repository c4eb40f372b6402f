"""Saving, loading and exporting a real bank: it goes on as if nothing had happened, or nothing has changed."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from emabank import EMA, EMABank, PowerEMA, Uniform, recalibrate_batchnorm
from emabank.checkpoint import export, load, save, write_state

SUFFIXES = (".pt", ".safetensors")


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))


def bank_of(model: nn.Module, **options: Any) -> EMABank:
    averages = [0.96, EMA(half_life=17, warmup="updates"), Uniform(), PowerEMA(0.1)]
    return EMABank(model, averages, **{"every": 3, **options})


def train(model: nn.Module, bank: EMABank, steps: range) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in steps:
        inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        bank.update()


def everything(bank: EMABank) -> dict[str, dict[str, Tensor]]:
    return {name: bank.weights(name) for name in bank.names}


assert_same = partial(torch.testing.assert_close, rtol=0, atol=0)


# A whole bank --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", [0, 1, 3, 7, 12])
def test_trap40_a_run_split_anywhere_equals_the_whole_run(tmp_path: Path, split: int) -> None:
    whole = network()
    bank = bank_of(whole)
    train(whole, bank, range(14))

    first = network()
    first_bank = bank_of(first)
    train(first, first_bank, range(split))
    save(first_bank, tmp_path / "bank.pt")
    second = network()
    second.load_state_dict(first.state_dict())
    second_bank = bank_of(second)
    load(second_bank, tmp_path / "bank.pt")
    train(second, second_bank, range(split, 14))

    assert_same(everything(second_bank), everything(bank))
    assert (second_bank.num_steps, second_bank.num_updates) == (bank.num_steps, bank.num_updates)


@pytest.mark.parametrize(
    "other",
    [
        lambda: EMABank(network(), [0.96], every=3),
        lambda: bank_of(network(), every=4),
        lambda: bank_of(nn.Sequential(nn.Linear(4, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 2))),
        lambda: bank_of(nn.Sequential(nn.Linear(4, 6))),
    ],
    ids=["averages", "period", "shapes", "keys"],
)
def test_trap41_a_bank_that_does_not_fit_is_refused_unchanged(tmp_path: Path, other: Callable[[], EMABank]) -> None:
    model = network()
    bank = bank_of(model)
    train(model, bank, range(5))
    save(bank, tmp_path / "bank.pt")
    target = other()
    before = everything(target)
    with pytest.raises(ValueError, match=r"\w"):
        load(target, tmp_path / "bank.pt")
    assert_same(everything(target), before)
    assert target.num_steps == 0


def test_trap41_a_damaged_file_leaves_the_bank_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "bank.pt"
    model = network()
    bank = bank_of(model)
    train(model, bank, range(5))
    save(bank, path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    before = everything(bank)
    with pytest.raises(ValueError, match=path.name):
        load(bank, path)
    assert_same(everything(bank), before)


def test_trap42_loading_keeps_dtype_and_device(tmp_path: Path) -> None:
    narrow = bank_of(network())
    wide = bank_of(network(), dtype=torch.float64)
    train(network(), narrow, range(3))
    save(narrow, tmp_path / "bank.pt")
    load(wide, tmp_path / "bank.pt")
    assert wide.weights(0.96)["0.weight"].dtype == torch.float64
    assert wide.weights(0.96)["0.weight"].device == torch.device("cpu")


def test_trap43_a_loaded_bank_is_not_tied_to_the_file(tmp_path: Path) -> None:
    model = network()
    bank = bank_of(model)
    train(model, bank, range(4))
    save(bank, tmp_path / "bank.pt")
    content = (tmp_path / "bank.pt").read_bytes()
    other = bank_of(network())
    load(other, tmp_path / "bank.pt")
    train(network(), other, range(4, 9))
    assert (tmp_path / "bank.pt").read_bytes() == content


def test_trap34_saving_while_an_average_is_applied_is_refused(tmp_path: Path) -> None:
    bank = bank_of(network())
    with bank.applied(0.96), pytest.raises(RuntimeError, match="applied"):
        save(bank, tmp_path / "bank.pt")
    assert not list(tmp_path.iterdir())


def test_trap44_plain_torch_load_reads_it_safely(tmp_path: Path) -> None:
    bank = bank_of(network())
    save(bank, tmp_path / "bank.pt")
    content = torch.load(tmp_path / "bank.pt", weights_only=True)
    other = bank_of(network())
    other.load_state_dict(content["state"])
    assert_same(everything(other), everything(bank))


def test_trap44_a_state_dict_saved_by_hand_is_explained(tmp_path: Path) -> None:
    bank = bank_of(network())
    torch.save(bank.state_dict(), tmp_path / "own.pt")
    with pytest.raises(ValueError, match=r"own\.pt was not written by emabank\.checkpoint.*bank\.load_state_dict"):
        load(bank, tmp_path / "own.pt")
    write_state(tmp_path / "snapshot.pt", {}, kind="snapshot")
    with pytest.raises(ValueError, match="holds an emabank snapshot, not a bank"):
        load(bank, tmp_path / "snapshot.pt")


# One average ---------------------------------------------------------------------------------------------------------


def read_plain(path: Path) -> dict[str, Any]:
    """As a user without emabank would."""
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    return torch.load(path, weights_only=True)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("name", [0.96, "uniform", "live"])
def test_trap45_one_average_loads_into_the_users_model(tmp_path: Path, suffix: str, name: str | float) -> None:
    model = network()
    bank = bank_of(model)
    train(model, bank, range(10))
    path = tmp_path / "new" / f"average{suffix}"
    export(bank, name, path)
    fresh = network()
    fresh.load_state_dict(read_plain(path))
    expected = bank.weights(name)
    for key, tensor in fresh.state_dict().items():
        assert torch.equal(tensor, expected[key].to(tensor.dtype)), key


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_trap45_dtype_is_for_floating_tensors_only(tmp_path: Path, suffix: str) -> None:
    bank = bank_of(network())
    export(bank, 0.96, tmp_path / f"half{suffix}", dtype=torch.bfloat16)
    loaded = read_plain(tmp_path / f"half{suffix}")
    assert {key for key, tensor in loaded.items() if tensor.dtype != torch.bfloat16} == {"1.num_batches_tracked"}
    assert loaded["1.num_batches_tracked"].dtype == torch.int64
    assert torch.equal(loaded["0.weight"], bank.weights(0.96)["0.weight"].bfloat16())
    with pytest.raises(ValueError, match="^dtype must .* got torch.int8"):
        export(bank, 0.96, tmp_path / f"int{suffix}", dtype=torch.int8)


def test_trap45_without_dtype_the_precision_is_the_stored_one(tmp_path: Path) -> None:
    bank = bank_of(network().bfloat16(), every=1)
    bank.update()
    export(bank, 0.96, tmp_path / "average.pt")
    assert read_plain(tmp_path / "average.pt")["0.weight"].dtype == torch.float32


def test_trap49_a_cast_that_overflows_is_refused(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    nn.init.constant_(model.weight, 1e5)
    model.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
    bank = EMABank(model, [0.96])
    with pytest.raises(ValueError, match=r"'weight' holds values that torch\.float16 cannot represent"):
        export(bank, 0.96, tmp_path / "half.pt", dtype=torch.float16)
    assert not list(tmp_path.iterdir())
    export(bank, 0.96, tmp_path / "wide.pt", dtype=torch.float64)
    assert read_plain(tmp_path / "wide.pt")["mask"].tolist() == [0.0, -torch.inf]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 50)
        self.head = nn.Linear(50, 100, bias=False)
        self.head.weight = self.embedding.weight


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_trap11_tied_tensors_have_both_keys(tmp_path: Path, suffix: str, dtype: torch.dtype | None) -> None:
    bank = EMABank(Tied(), [0.96])
    export(bank, 0.96, tmp_path / f"tied{suffix}", dtype=dtype)
    loaded = read_plain(tmp_path / f"tied{suffix}")
    assert sorted(loaded) == ["embedding.weight", "head.weight"]
    Tied().load_state_dict(loaded)
    if suffix == ".pt":  # stored once
        assert loaded["embedding.weight"].data_ptr() == loaded["head.weight"].data_ptr()
        assert (tmp_path / "tied.pt").stat().st_size < 1.5 * loaded["head.weight"].nbytes


class WithExtraState(nn.Linear):
    def __init__(self, extra: object) -> None:
        super().__init__(2, 1)
        self.extra = extra

    def get_extra_state(self) -> object:
        return self.extra

    def set_extra_state(self, state: object) -> None:
        self.extra = state


def test_extra_state_is_kept_where_it_loads_safely(tmp_path: Path) -> None:
    bank = EMABank(WithExtraState({"scale": 3}), [0.96])
    export(bank, 0.96, tmp_path / "extra.pt")
    model = WithExtraState(None)
    model.load_state_dict(torch.load(tmp_path / "extra.pt", weights_only=True))
    assert model.extra == {"scale": 3}
    with pytest.raises(ValueError, match=r"The safetensors format holds tensors only, and _extra_state.*'\.pt'"):
        export(bank, 0.96, tmp_path / "extra.safetensors")
    with pytest.raises(ValueError, match=r"'_extra_state' of the model's state is a .*Path.*get_extra_state"):
        export(EMABank(WithExtraState(Path("x")), [0.96]), 0.96, tmp_path / "unsafe.pt")
    assert [entry.name for entry in tmp_path.iterdir()] == ["extra.pt"]


def test_recomputed_statistics_are_exported_unless_averaged_ones_are_asked_for(tmp_path: Path) -> None:
    bank = bank_of(network())
    recalibrate_batchnorm(bank, [torch.randn(9, 4)])
    export(bank, 0.96, tmp_path / "averaged.pt", batchnorm="averaged")
    export(bank, 0.96, tmp_path / "recomputed.pt")
    assert read_plain(tmp_path / "averaged.pt")["1.running_mean"].tolist() == [0.0] * 6
    recomputed = bank.weights(0.96, batchnorm="recomputed")["1.running_mean"]
    assert recomputed.tolist() != [0.0] * 6
    assert torch.equal(read_plain(tmp_path / "recomputed.pt")["1.running_mean"], recomputed)


def test_an_average_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match=r"ema-0\.9"):
        export(bank_of(network()), 0.5, tmp_path / "none.pt")
    assert not list(tmp_path.iterdir())
