"""_storage.py: averages in blocks, against one lerp per tensor."""

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from emabank._storage import SCRATCH, AverageStorage
from tests.support.models import alive_storages

WEIGHTS = [0.032, 0.016, 0.5, 1.0, 0.0]


def tensors() -> list[Tensor]:
    """Sizes around every limit: empty, one, a block, a page, large; and unusual strides and dtypes."""
    torch.manual_seed(0)
    plain = [torch.randn(n) for n in (0, 1, 5, 1023, 1024, 1025, 10_240, 32_767, 32_768, 32_769, 70_000, 300_000)]
    return [
        *plain,
        torch.randn(()),
        torch.randn(30, 40, 3, 3).to(memory_format=torch.channels_last),
        torch.randn(90, 70).t(),
        torch.randn(80, 160)[:, ::2],
        torch.randn(7, 1).expand(7, 3),
        torch.randn(60, 80, dtype=torch.complex64),
        torch.randn(60, 80, dtype=torch.complex64)[:, ::2],
        torch.randn(300, 300)[:, ::2],
        torch.randn(5, dtype=torch.complex128),
        torch.randn(9000).bfloat16(),
        torch.randn(300_000).half(),
        torch.randn(9000, dtype=torch.float64),
        torch.randn(50).bfloat16(),
    ]


def move(lives: list[Tensor]) -> None:
    for live in lives:
        if not live.stride().count(0) or live.dim() == 0:
            live.mul_(0.7).add_(0.1)


def wide(live: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    return live.to(torch.promote_types(dtype, live.dtype)).clone()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 5])
def test_the_fused_pass_equals_one_lerp_per_tensor(dtype: torch.dtype, count: int) -> None:
    lives = tensors()
    storage = AverageStorage(lives, count, dtype=dtype, device=None)
    expected = [[wide(live, dtype) for live in lives] for _ in range(count)]
    for _ in range(4):
        move(lives)
        assert storage.nonfinite() == []
        storage.lerp_(WEIGHTS[:count])
        for k in range(count):
            expected[k] = [
                old.lerp(wide(live, dtype), WEIGHTS[k]) for old, live in zip(expected[k], lives, strict=True)
            ]
    for k in range(count):
        for got, want, live in zip(storage.read(k), expected[k], lives, strict=True):
            assert got.shape == live.shape
            assert got.dtype == want.dtype
            assert live.untyped_storage().nbytes() != live.nbytes or got.stride() == live.stride()
            torch.testing.assert_close(got, want, rtol=3e-7 if dtype == torch.float32 else 1e-12, atol=0)


def test_trap01_half_precision_weights_are_averaged_in_float32() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        live = torch.ones(2000, dtype=dtype)
        storage = AverageStorage([live], 1, dtype=torch.float32, device=None)
        live.fill_(1.1)
        for _ in range(2000):
            storage.lerp_([1 - 0.998])
        average = storage.read(0)[0]
        assert average.dtype == torch.float32
        torch.testing.assert_close(average, torch.full((2000,), 1.0 + (float(live[0]) - 1.0) * (1 - 0.998**2000)))


def test_trap02_weight_1_copies_weight_0_keeps_and_equal_values_stay() -> None:
    lives = tensors()
    storage = AverageStorage(lives, 3, dtype=torch.float32, device=None)
    before = storage.read(1)
    storage.lerp_([0.3, 0.3, 0.3])
    assert all(torch.equal(a, b) for a, b in zip(storage.read(0), before, strict=True))  # equal input, equal output
    move(lives)
    storage.lerp_([1.0, 0.0, 0.3])
    assert all(torch.equal(a, wide(b)) for a, b in zip(storage.read(0), lives, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(storage.read(1), before, strict=True))


@pytest.mark.parametrize("size", [3, 5000, 1_000_000])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_trap49_the_check_finds_every_nonfinite_tensor(size: int, value: float) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float8_e5m2, torch.complex64):
        live = torch.ones(size).to(dtype)
        storage = AverageStorage([torch.ones(4), torch.ones(0), live], 1, dtype=torch.float32, device=None)
        assert storage.nonfinite() == storage.start_check()[1]() == []
        assert storage.start_check()[0]
        live[size // 3] = value
        assert storage.nonfinite() == storage.start_check()[1]() == [2]
        assert not storage.start_check()[0]


def test_a_large_finite_weight_passes_the_check() -> None:
    live = torch.full((40_000,), torch.finfo(torch.float32).max)
    storage = AverageStorage([live, live[:7]], 1, dtype=torch.float32, device=None)
    assert storage.nonfinite() == storage.start_check()[1]() == []


def test_an_update_with_a_false_flag_changes_nothing() -> None:
    """On an accelerator the host has not read the flag when it updates the averages."""
    lives = tensors()
    storage = AverageStorage(lives, 5, dtype=torch.float32, device=None)
    move(lives)
    storage.lerp_(WEIGHTS, torch.tensor(True))
    before = [storage.read(k) for k in range(5)]
    for live in lives:
        live.fill_(float("nan"))
    finite, bad = storage.start_check()
    storage.lerp_(WEIGHTS, finite)
    assert bad() == [index for index, live in enumerate(lives) if live.numel()]
    for k in range(5):
        assert all(torch.equal(a, b) for a, b in zip(storage.read(k), before[k], strict=True))


class _Calls(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_trap64_many_small_tensors_make_few_parallel_regions() -> None:
    """Operations per page, not per tensor."""
    lives = [torch.randn(1000) for _ in range(1000)]
    storage = AverageStorage(lives, 5, dtype=torch.float32, device=None)
    pages = -(-1000 * 1000 // (SCRATCH - 1000))
    with _Calls() as calls:
        storage.lerp_([0.1] * 5)
    assert sum("lerp" in name for name in calls.names) <= pages
    assert len(calls.names) < 20 * pages


def test_memory_beside_the_averages_is_bounded() -> None:
    """At most 2% or 1 MiB, whatever the mix of sizes and dtypes."""
    dense = [live for live in tensors() if live.untyped_storage().nbytes() == live.nbytes]
    for lives in ([torch.randn(1000) for _ in range(1000)], [torch.randn(3_000_000).bfloat16()], dense):
        before = alive_storages()
        storage = AverageStorage(lives, 5, dtype=torch.float32, device=None)
        added = sum(size for pointer, size in alive_storages().items() if pointer not in before)
        wanted = 5 * sum(wide(live).numel() * wide(live).element_size() for live in lives)
        assert wanted <= added <= wanted + max(0.02 * wanted, 2**20)
        storage.lerp_(WEIGHTS)


@pytest.mark.parametrize("count", [1, 5])
def test_another_device_is_read_through_two_buffers(count: int) -> None:
    """Without an accelerator: "cpu:0" is another device than "cpu" to the storage, though not to torch."""
    lives = [torch.randn(2_000_000).bfloat16(), *tensors()]
    plain = AverageStorage(lives, count, dtype=torch.float32, device=None)
    fetched = AverageStorage(lives, count, dtype=torch.float32, device=torch.device("cpu:0"))
    for _ in range(3):
        move(lives)
        for storage in (plain, fetched):
            assert storage.nonfinite() == []
            storage.lerp_(WEIGHTS[:count])
    for k in range(count):
        assert all(torch.equal(a, b) for a, b in zip(plain.read(k), fetched.read(k), strict=True))
