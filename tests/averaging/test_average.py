"""Averages of checkpoints against the plain mean in float64, whatever the type, the shape and the layout."""

import math
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from averaging.made import assert_same, everything_in, mean, read, state, write
from hypothesis import given, settings
from hypothesis import strategies as st

from emabank.averaging import average_checkpoints, ema_shares, fit_together, given_shares, last_shares

FLOATING = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64)
WHOLE = (torch.int64, torch.int32, torch.uint8, torch.bool)


def folder_of(tmp_path: Path, suffix: str, states: list[dict[str, torch.Tensor]]) -> list[Path]:
    return [write(tmp_path / f"step-{at}{suffix}", each) for at, each in enumerate(states)]


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".bin", ".ckpt"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_mean_of_three(tmp_path: Path, suffix: str, dtype: torch.dtype):
    states = [state(seed, dtype) for seed in (1, 2, 3)]
    out = tmp_path / f"average{suffix}"
    done = average_checkpoints(folder_of(tmp_path, suffix, states), out)
    assert_same(read(out), mean(states, [1 / 3] * 3))
    assert done.copied == ("norm.num_batches_tracked",) and len(done.averaged) == 5
    assert set(done.batchnorm) == {"norm.running_mean", "norm.running_var"} and done.differing == ()


@pytest.mark.parametrize("shares", [last_shares(4, 2), ema_shares(4, 0.7), given_shares(4, [1, 0, 5, 2])])
@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_every_way_to_share(tmp_path: Path, suffix: str, shares: list[float]):
    states = [state(seed) for seed in range(4)]
    average_checkpoints(folder_of(tmp_path, suffix, states), tmp_path / f"average{suffix}", shares)
    assert_same(read(tmp_path / f"average{suffix}"), mean(states, shares))


def test_what_counts_nothing_is_not_looked_at(tmp_path: Path):
    (tmp_path / "0.pt").write_bytes(b"damaged")
    paths = [tmp_path / "0.pt", write(tmp_path / "1.pt", state(1)), write(tmp_path / "2.pt", state(2))]
    done = average_checkpoints(paths, tmp_path / "average.pt", last_shares(3, 2))
    assert [path.name for path, _ in done.checkpoints] == ["1.pt", "2.pt"]


@st.composite
def some_states(draw: st.DrawFn) -> list[dict[str, torch.Tensor]]:
    shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
    tensors = draw(st.lists(st.tuples(shapes, st.sampled_from(FLOATING + WHOLE)), min_size=1, max_size=4))
    count, seed = draw(st.integers(1, 4)), draw(st.integers(0, 2**30))
    generator = torch.Generator().manual_seed(seed)
    found: list[dict[str, torch.Tensor]] = [{} for _ in range(count)]
    for each in found:
        for at, (shape, dtype) in enumerate(tensors):
            values = 9 * torch.randn(shape, generator=generator)
            if dtype.is_complex:
                values = torch.complex(values, 9 * torch.randn(shape, generator=generator))
            each[f"layer.{at}"] = (values.abs() if dtype in WHOLE else values).to(dtype)
    return found


@settings(max_examples=60)
@given(some_states(), st.sampled_from([".safetensors", ".pt"]), st.lists(st.floats(0.1, 9), min_size=4, max_size=4))
def test_any_types_shapes_and_weights(states: list[dict[str, torch.Tensor]], suffix: str, weights: list[float]):
    shares = given_shares(len(states), weights[: len(states)])
    with TemporaryDirectory() as name:
        folder = Path(name)
        average_checkpoints(folder_of(folder, suffix, states), folder / f"average{suffix}", shares)
        assert_same(read(folder / f"average{suffix}"), mean(states, shares))


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_large_tensors_in_many_pieces(tmp_path: Path, suffix: str):
    shapes = {"tall": (70_001, 5), "flat": (3, 200_003), "long": (400_007,), "whole": (300_000,)}
    states = []
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        states.append({name: torch.randn(shape, generator=generator) for name, shape in shapes.items()})
        states[-1]["whole"] = states[-1]["whole"].to(torch.int16)
    told: list[tuple[int, int]] = []
    average_checkpoints(
        folder_of(tmp_path, suffix, states),
        tmp_path / f"a{suffix}",
        tell=lambda done, total: told.append((done, total)),
    )
    assert_same(read(tmp_path / f"a{suffix}"), mean(states, [1 / 3] * 3))
    total = 4 * (70_001 * 5 + 3 * 200_003 + 400_007) + 2 * 300_000
    assert told[-1] == (total, total) and len(told) > 20
    assert [done for done, _ in told] == sorted(done for done, _ in told)


@pytest.mark.parametrize("dtype", FLOATING)
def test_what_is_equal_comes_out_bit_for_bit(tmp_path: Path, dtype: torch.dtype):
    same = {"weight": torch.randn(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)}
    paths = [write(tmp_path / f"{at}.pt", same) for at in range(7)]
    average_checkpoints(paths, tmp_path / "average.pt", ema_shares(7, 0.9))
    assert torch.equal(read(tmp_path / "average.pt")["weight"], same["weight"])


def test_a_constant_infinite_mask_stays_one(tmp_path: Path):
    mask = torch.full((4, 4), -math.inf).triu(1)
    paths = [write(tmp_path / f"{at}.pt", {"mask": mask, "weight": torch.full((2,), at)}) for at in (1.0, 2.0)]
    average_checkpoints(paths, tmp_path / "average.pt")
    assert torch.equal(read(tmp_path / "average.pt")["mask"], mask)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_what_is_not_finite_is_refused_and_named(tmp_path: Path, bad: float, which: int):
    states = [state(seed) for seed in range(3)]
    states[which]["conv.weight"][1, 2, 0, 1] = bad
    paths = folder_of(tmp_path, ".pt", states)
    with pytest.raises(ValueError, match=f"step-{which}.pt has NaN or infinite values in 'conv.weight'; leave that"):
        average_checkpoints(paths, tmp_path / "average.pt")
    assert everything_in(tmp_path) == [path.name for path in paths]


def test_spectral_norms_vectors_are_the_last_ones(tmp_path: Path):
    old = torch.nn.utils.spectral_norm
    new = torch.nn.utils.parametrizations.spectral_norm
    states = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(old(torch.nn.Linear(3, 3)), new(torch.nn.Linear(3, 3)))
        model(torch.randn(5, 3))
        states.append({name: tensor.detach().clone() for name, tensor in model.state_dict().items()})
    done = average_checkpoints(folder_of(tmp_path, ".pt", states), tmp_path / "average.pt")
    assert len(done.copied) == 4 and all(name[-2:] in ("_u", "_v") for name in done.copied)
    made = read(tmp_path / "average.pt")
    assert all(torch.equal(made[name], states[-1][name]) for name in done.copied)
    assert_same(
        {name: made[name] for name in done.averaged},
        mean([{name: each[name] for name in done.averaged} for each in states], [0.5, 0.5]),
    )


def test_whole_numbers_that_differ_are_told(tmp_path: Path):
    states = [state(seed) | {"codes": torch.tensor([seed, 2]), "ids": torch.arange(3)} for seed in (1, 2)]
    done = average_checkpoints(folder_of(tmp_path, ".safetensors", states), tmp_path / "average.safetensors")
    assert done.differing == ("codes",)
    assert read(tmp_path / "average.safetensors")["codes"].tolist() == [2, 2]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"scale": None}, "it has no tensor 'scale'"),
        ({"more": torch.zeros(1)}, "it has a tensor 'more', and the other has none"),
        ({"scale": torch.zeros(2)}, r"'scale' is float32 \[2\] in the one and float32 \[\] in the other"),
        (
            {"scale": torch.zeros((), dtype=torch.float16)},
            r"'scale' is float16 \[\] in the one and float32 \[\] in the",
        ),
    ],
)
@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_checkpoints_that_do_not_fit_are_refused_by_tensor(tmp_path: Path, suffix: str, change, said: str):
    first = {name: tensor for name, tensor in (state(1) | change).items() if tensor is not None}
    paths = folder_of(tmp_path, suffix, [first, state(2)])
    with pytest.raises(ValueError, match=said) as caught:
        average_checkpoints(paths, tmp_path / f"average{suffix}")
    assert f"{paths[0]} does not fit {paths[1]}" in str(caught.value)
    with pytest.raises(ValueError, match=said):
        fit_together(paths)
    assert everything_in(tmp_path) == [path.name for path in paths]


def test_shares_have_to_be_shares(tmp_path: Path):
    paths = folder_of(tmp_path, ".pt", [state(1), state(2)])
    for shares, said in (
        ([1.0], "There are 2 checkpoints and 1 shares"),
        ([0.5, 0.6], "add up to 1"),
        ([1.5, -0.5], "from 0 to 1"),
        ([math.nan, 1], "make no average"),
    ):
        with pytest.raises(ValueError, match=said):
            average_checkpoints(paths, tmp_path / "average.pt", shares)


def test_layouts_may_be_mixed_and_the_last_one_decides(tmp_path: Path):
    states = [state(1), state(2)]
    paths = [write(tmp_path / "1.pt", states[0]), write(tmp_path / "2.safetensors", states[1])]
    average_checkpoints(paths, tmp_path / "average.safetensors")
    assert_same(read(tmp_path / "average.safetensors"), mean(states, [0.5, 0.5]))
    average_checkpoints(paths[::-1], tmp_path / "average.pt")
    made = read(tmp_path / "average.pt")
    assert made["norm.num_batches_tracked"] == 10
    assert_same(made, mean(states[::-1], [0.5, 0.5]))
