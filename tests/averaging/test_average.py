"""Averages of checkpoints against their definition in float64: dtypes, shapes, weights, order, mismatches, memory."""

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emabank.averaging import (
    average_checkpoints,
    ema_weights,
    find_checkpoints,
    last_weights,
    normalized_weights,
    plan_average,
    sort_checkpoints,
    uniform_weights,
)
from tests.support.files import assert_average, everything_in, mean, read, state, write, write_all
from tests.support.oracle import assert_equal

FLOATING = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64)
INTEGER = (torch.int64, torch.int32, torch.uint8, torch.bool)


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".bin", ".ckpt"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_plain_mean(tmp_path: Path, suffix: str, dtype: torch.dtype):
    states = [state(seed, dtype) for seed in (1, 2, 3)]
    out = tmp_path / f"average{suffix}"
    plan = average_checkpoints(write_all(tmp_path, suffix, states), out)
    assert_average(read(out), mean(states))
    assert plan.copied == ("norm.num_batches_tracked",) and len(plan.averaged) == 5
    assert set(plan.batchnorm) == {"norm.running_mean", "norm.running_var"} and plan.differing == ()


def test_a_checkpoint_with_weight_0_is_not_opened(tmp_path: Path):
    (tmp_path / "0.pt").write_bytes(b"damaged")
    paths = [tmp_path / "0.pt", write(tmp_path / "1.pt", state(1)), write(tmp_path / "2.pt", state(2))]
    plan = average_checkpoints(paths, tmp_path / "average.pt", last_weights(3, 2))
    assert [path.name for path, _ in plan.checkpoints] == ["1.pt", "2.pt"]


@st.composite
def some_states(draw: st.DrawFn) -> list[dict[str, torch.Tensor]]:
    shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
    tensors = draw(st.lists(st.tuples(shapes, st.sampled_from(FLOATING + INTEGER)), min_size=1, max_size=4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**30)))
    states: list[dict[str, torch.Tensor]] = []
    for _ in range(draw(st.integers(1, 4))):
        states.append({})
        for layer, (shape, dtype) in enumerate(tensors):
            values = 9 * torch.randn(shape, generator=generator)
            if dtype.is_complex:
                values = torch.complex(values, 9 * torch.randn(shape, generator=generator))
            states[-1][f"layer.{layer}"] = (values.abs() if dtype in INTEGER else values).to(dtype)
    return states


@settings(max_examples=60)
@given(some_states(), st.sampled_from([".safetensors", ".pt"]), st.lists(st.floats(0.1, 9), min_size=4, max_size=4))
def test_any_dtypes_shapes_and_weights(states: list[dict[str, torch.Tensor]], suffix: str, weights: list[float]):
    weights = normalized_weights(len(states), weights[: len(states)])
    with TemporaryDirectory() as name:
        out = Path(name, f"average{suffix}")
        average_checkpoints(write_all(Path(name), suffix, states), out, weights)
        assert_average(read(out), mean(states, weights))


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_large_tensors_take_many_chunks_and_progress_counts_bytes(tmp_path: Path, suffix: str):
    shapes = {"tall": (70_001, 5), "flat": (3, 200_003), "long": (400_007,), "integer": (300_000,)}
    states = []
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        states.append({name: torch.randn(shape, generator=generator) for name, shape in shapes.items()})
        states[-1]["integer"] = states[-1]["integer"].to(torch.int16)
    calls: list[tuple[int, int]] = []
    out = tmp_path / f"average{suffix}"
    average_checkpoints(write_all(tmp_path, suffix, states), out, progress=lambda *call: calls.append(call))
    assert_average(read(out), mean(states))
    total = sum(tensor.nbytes for tensor in states[0].values())
    assert calls[-1] == (total, total) and len(calls) > 20
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)


@pytest.mark.parametrize("dtype", FLOATING)
def test_equal_values_keep_their_bits(tmp_path: Path, dtype: torch.dtype):
    same = {"weight": torch.randn(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)}
    same["weight"][0] = -0.0
    average_checkpoints(write_all(tmp_path, ".pt", [same] * 7), tmp_path / "average.pt", ema_weights(7, 0.9))
    assert_equal(read(tmp_path / "average.pt"), same)
    assert dtype.is_complex or read(tmp_path / "average.pt")["weight"][0].signbit()


def test_a_constant_infinite_mask_is_kept(tmp_path: Path):
    mask = torch.full((4, 4), -math.inf).triu(1)
    paths = write_all(tmp_path, ".pt", [{"mask": mask, "weight": torch.full((2,), value)} for value in (1.0, 2.0)])
    average_checkpoints(paths, tmp_path / "average.pt")
    assert_equal(read(tmp_path / "average.pt")["mask"], mask)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_nonfinite_values_are_refused(tmp_path: Path, bad: float, which: int):
    states = [state(seed) for seed in range(3)]
    states[which]["conv.weight"][1, 2, 0, 1] = bad
    paths = write_all(tmp_path, ".pt", states)
    with pytest.raises(ValueError, match=rf"step-{which}\.pt has .*'conv\.weight'"):
        average_checkpoints(paths, tmp_path / "average.pt")
    assert everything_in(tmp_path) == [path.name for path in paths]


def test_vectors_of_spectral_norm_come_from_the_last_checkpoint(tmp_path: Path):
    old, new = torch.nn.utils.spectral_norm, torch.nn.utils.parametrizations.spectral_norm
    states = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(old(torch.nn.Linear(3, 3)), new(torch.nn.Linear(3, 3)))
        model(torch.randn(5, 3))
        states.append({name: tensor.detach().clone() for name, tensor in model.state_dict().items()})
    plan = average_checkpoints(write_all(tmp_path, ".pt", states), tmp_path / "average.pt")
    assert len(plan.copied) == 4 and all(name[-2:] in ("_u", "_v") for name in plan.copied)
    expected = mean(states) | {name: states[-1][name] for name in plan.copied}
    assert_average(read(tmp_path / "average.pt"), expected)


def test_integer_tensors_that_differ_are_listed(tmp_path: Path):
    states = [state(seed) | {"codes": torch.tensor([seed, 2]), "ids": torch.arange(3)} for seed in (1, 2)]
    plan = average_checkpoints(write_all(tmp_path, ".safetensors", states), tmp_path / "average.safetensors")
    assert plan.differing == ("codes",)
    assert read(tmp_path / "average.safetensors")["codes"].tolist() == [2, 2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scale": None}, "'scale'"),
        ({"more": torch.zeros(1)}, "'more'"),
        ({"scale": torch.zeros(2)}, r"'scale' is float32 \[2\] .* float32 \[\]"),
        ({"scale": torch.zeros((), dtype=torch.float16)}, r"'scale' is float16 \[\] .* float32 \[\]"),
    ],
)
@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_checkpoints_that_do_not_match_are_refused(tmp_path: Path, suffix: str, change, message: str):
    first = {name: tensor for name, tensor in (state(1) | change).items() if tensor is not None}
    paths = write_all(tmp_path, suffix, [first, state(2)])
    for call in (lambda: average_checkpoints(paths, tmp_path / f"average{suffix}"), lambda: plan_average(paths)):
        with pytest.raises(ValueError, match=message) as caught:
            call()
        assert str(paths[0]) in str(caught.value) and str(paths[1]) in str(caught.value)
    assert everything_in(tmp_path) == [path.name for path in paths]


def test_formats_can_be_mixed_and_the_last_sets_the_output_format(tmp_path: Path):
    states = [state(1), state(2)]
    paths = [write(tmp_path / "1.pt", states[0]), write(tmp_path / "2.safetensors", states[1])]
    average_checkpoints(paths, tmp_path / "average.safetensors")
    assert_average(read(tmp_path / "average.safetensors"), mean(states))
    average_checkpoints(paths[::-1], tmp_path / "average.pt")
    assert_average(read(tmp_path / "average.pt"), mean(states[::-1]))


# Memory --------------------------------------------------------------------------------------------------------------

TENSOR = 16 * 2**20  # bytes
MEASURE = """
import sys
from pathlib import Path
import torch
from emabank.averaging import average_checkpoints

def memory():  # without pages of mapped files (RssFile), which the system may drop
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(fields["RssAnon"].split()[0])

folder, suffix = Path(sys.argv[1]), sys.argv[2]
average_checkpoints([folder / f"small-{step}{suffix}" for step in (1, 2)], folder / f"small{suffix}")  # warm up
peak = before = memory()

def progress(done, total):
    global peak
    peak = max(peak, memory())

paths = [folder / f"large-{step}{suffix}" for step in (1, 2, 3)]
average_checkpoints(paths, folder / f"large{suffix}", progress=progress)
print(max(peak, memory()) - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_memory_stays_below_one_tensor(tmp_path: Path, suffix: str):
    for step in (1, 2, 3):
        write(tmp_path / f"small-{step}{suffix}", {"weight": torch.full((300_000,), step, dtype=torch.bfloat16)})
        large = torch.full((TENSOR // 2 // 1024, 1024), step, dtype=torch.bfloat16)
        write(tmp_path / f"large-{step}{suffix}", {"first": large, "second": large.view(-1) + 1})
    command = [sys.executable, "-c", MEASURE, str(tmp_path), suffix]
    process = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stderr
    assert int(process.stdout) < TENSOR


# Weights -------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 40), st.floats(0, 0.999))
def test_ema_weights_equal_the_recursion_from_zero_with_adams_bias_correction(count: int, decay: float):
    values = [float((7 * step) % 11) for step in range(count)]
    average = 0.0
    for value in values:
        average = decay * average + (1 - decay) * value
    average /= 1 - decay**count
    weights = ema_weights(count, decay)
    total = sum(weight * value for weight, value in zip(weights, values, strict=True))
    assert total == pytest.approx(average)
    assert math.fsum(weights) == pytest.approx(1, abs=1e-12)


def test_uniform_last_and_normalized_weights():
    assert uniform_weights(2) == [0.5, 0.5]
    assert last_weights(5, 2) == [0, 0, 0, 0.5, 0.5] and last_weights(3, 3) == uniform_weights(3)
    assert normalized_weights(3, [0, 2, 6]) == [0, 0.25, 0.75]
    assert normalized_weights(2, [1e308, 1e308]) == [0.5, 0.5]
    assert ema_weights(3, 0) == [0, 0, 1] and ema_weights(1, 0.9) == [1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: last_weights(3, 4), "^last .* got 4"),
        (lambda: last_weights(3, 0), "^last .* got 0"),
        (lambda: ema_weights(3, 1.0), "^decay .* got 1.0"),
        (lambda: ema_weights(3, math.nan), "^decay .* got nan"),
        (lambda: normalized_weights(3, [1, 2]), "^weights .* got 2 for 3"),
        (lambda: normalized_weights(2, [0, 0]), "^weights .* got"),
        (lambda: normalized_weights(2, [-1, 2]), "^weights .* got"),
        (lambda: normalized_weights(2, [math.inf, 2]), "^weights .* got"),
        (lambda: uniform_weights(0), "^count .* got 0"),
    ],
)
def test_wrong_arguments_of_weight_functions_are_refused(call: Callable[[], object], message: str):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("weights", [[1.0], [0.5, 0.6], [1.5, -0.5], [math.nan, 1]])
def test_invalid_weights_are_refused(tmp_path: Path, weights: list[float]):
    paths = write_all(tmp_path, ".pt", [state(1), state(2)])
    with pytest.raises(ValueError, match="^weights must .* got"):
        average_checkpoints(paths, tmp_path / "average.pt", weights)


# Which checkpoints, in which order -----------------------------------------------------------------------------------


def touch(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def names_of(*paths: Path) -> list[str]:
    return [path.name for path in find_checkpoints(paths).checkpoints]


@pytest.mark.parametrize(
    ("files", "found", "skipped"),
    [
        ("step-1000.pt step-200.pt optimizer.pt notes.txt .hidden-1.pt", ["step-200.pt", "step-1000.pt"], []),
        ("epoch=9-step=90.ckpt epoch=10.ckpt last.ckpt", ["epoch=9-step=90.ckpt", "epoch=10.ckpt"], ["last.ckpt"]),
        ("epoch=1.ckpt epoch=1-v1.ckpt last-v1.ckpt", ["epoch=1-v1.ckpt", "epoch=1.ckpt"], ["last-v1.ckpt"]),
        ("net-v1.pt net-v2.pt", ["net-v1.pt", "net-v2.pt"], []),
        ("b.pt a.pt c1.pt", ["a.pt", "b.pt", "c1.pt"], []),  # a single number gives no order
    ],
)
def test_files_are_sorted_by_number_and_files_without_one_are_skipped(tmp_path: Path, files: str, found, skipped):
    result = find_checkpoints([touch(tmp_path, *files.split())])
    assert [path.name for path in result.checkpoints] == found
    assert [path.name for path in result.skipped] == skipped
    assert names_of(*(tmp_path / name for name in found[::-1])) == found[::-1]  # files keep the order of the arguments


@pytest.mark.parametrize(
    "weights", ["model.safetensors", "pytorch_model.bin", "model.safetensors.index.json", "net.pt"]
)
def test_folders_are_sorted_by_number(tmp_path: Path, weights: str):
    touch(tmp_path, *(f"checkpoint-{step}/{weights}" for step in (1000, 500, 50)), "runs/events", "trainer_state.json")
    touch(tmp_path / "checkpoint-50", "optimizer.pt", "config.json")
    assert names_of(tmp_path) == ["checkpoint-50", "checkpoint-500", "checkpoint-1000"]
    assert names_of(tmp_path / "checkpoint-500", tmp_path / "checkpoint-50") == ["checkpoint-500", "checkpoint-50"]


def test_an_ambiguous_folder_and_a_repeated_path_are_refused(tmp_path: Path):
    touch(tmp_path, "model.safetensors", "checkpoint-500/model.safetensors", "checkpoint-60/model.safetensors")
    with pytest.raises(ValueError, match="checkpoint-60"):
        find_checkpoints([tmp_path])
    with pytest.raises(ValueError, match=r"model\.safetensors .* more than once"):
        find_checkpoints([tmp_path / "model.safetensors", tmp_path / "." / "model.safetensors"])


def test_a_folder_without_checkpoints_and_a_missing_path_are_refused(tmp_path: Path):
    with pytest.raises(ValueError, match=tmp_path.name):
        find_checkpoints([tmp_path])
    with pytest.raises(FileNotFoundError, match="nowhere"):
        find_checkpoints([tmp_path / "nowhere"])


@given(st.lists(st.integers(0, 10**9), unique=True))
def test_paths_are_sorted_by_the_numbers_in_file_and_folder_names(numbers: list[int]):
    for name in ("step-{}.pt", "runs/checkpoint-{}/model.safetensors"):
        paths = [Path(name.format(number)) for number in numbers]
        assert sort_checkpoints(paths) == [Path(name.format(number)) for number in sorted(numbers)]


def test_the_order_of_any_names_is_deterministic():
    paths = [Path(name) for name in ("²", "٣", "1a", "a", "a1", "a1b2", "", "01", "1")]
    assert sort_checkpoints(paths) == sort_checkpoints(reversed(paths))
