"""The fused pass against one lerp per tensor and average, in every layout memory can have."""

import copy
import pickle

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from emabank._storage import BLOCK, SCRATCH, AverageStorage, TensorLayout

WEIGHTS = [0.032, 0.016, 0.5, 1.0, 0.0]


def tensors() -> list[Tensor]:
    """Around every border: empty, one, a block, a page, large with and without an end, other orders and dtypes."""
    torch.manual_seed(0)
    plain = [torch.randn(n) for n in (0, 1, 5, 1023, 1024, 1025, 4095, 4096, 4097, 10_240, 70_000)]
    return [
        *plain,
        torch.randn(()),
        torch.randn(30, 40, 3, 3).to(memory_format=torch.channels_last),
        torch.randn(90, 70).t(),
        torch.randn(80, 160)[:, ::2],
        torch.randn(7, 1).expand(7, 3),
        torch.randn(60, 80, dtype=torch.complex64),
        torch.randn(60, 80, dtype=torch.complex64)[:, ::2],
        torch.randn(5, dtype=torch.complex128),
        torch.randn(9000).bfloat16(),
        torch.randn(300_000).half(),
        torch.randn(9000, dtype=torch.float64),
        torch.randn(50).bfloat16(),
    ]


def moved(lives: list[Tensor]) -> list[Tensor]:
    """The next values, written into the live tensors."""
    for live in lives:
        if not live.stride().count(0) or live.dim() == 0:
            live.mul_(0.7).add_(0.1)
    return lives


def wide(live: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    return live.to(torch.promote_types(dtype, live.dtype)).clone()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 5])
def test_the_fused_pass_equals_one_lerp_per_tensor(dtype: torch.dtype, count: int) -> None:
    lives = tensors()
    storage = AverageStorage(lives, count, dtype=dtype, device=None)
    expected = [[wide(live, dtype) for live in lives] for _ in range(count)]
    for _ in range(4):
        moved(lives)
        storage.looks_finite()
        storage.lerp_(WEIGHTS[:count])
        for k in range(count):
            expected[k] = [
                old.lerp(wide(live, dtype), WEIGHTS[k]) for old, live in zip(expected[k], lives, strict=True)
            ]
    for k in range(count):
        for got, want, live in zip(storage.read(k), expected[k], lives, strict=True):
            assert got.shape == live.shape
            assert got.dtype == want.dtype
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


def test_trap02_weight_1_copies_weight_0_keeps_and_equals_stay() -> None:
    lives = tensors()
    storage = AverageStorage(lives, 3, dtype=torch.float32, device=None)
    before = storage.read(1)
    storage.lerp_([0.3, 0.3, 0.3])
    assert all(torch.equal(a, b) for a, b in zip(storage.read(0), before, strict=True))  # equal input, equal output
    moved(lives)
    storage.lerp_([1.0, 0.0, 0.3])
    assert all(torch.equal(a, wide(b)) for a, b in zip(storage.read(0), lives, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(storage.read(1), before, strict=True))


def test_trap07_dtypes_and_orders_come_back_as_they_are() -> None:
    lives = tensors()
    storage = AverageStorage(lives, 1, dtype=torch.float32, device=None)
    for got, live in zip(storage.read(0), lives, strict=True):
        assert torch.equal(got, wide(live))
        assert got.is_complex() == live.is_complex()
        if TensorLayout.of(live).is_dense:
            assert got.stride() == live.stride()


def test_write_is_the_inverse_of_read() -> None:
    lives = tensors()
    storage = AverageStorage(lives, 2, dtype=torch.float32, device=None)
    values = [torch.randn_like(wide(live)) for live in lives]
    storage.write(1, values)
    assert all(torch.equal(a, b) for a, b in zip(storage.read(1), values, strict=True))
    assert all(torch.equal(a, wide(b)) for a, b in zip(storage.read(0), lives, strict=True))


def test_what_is_read_is_a_copy() -> None:
    storage = AverageStorage(tensors(), 1, dtype=torch.float32, device=None)
    for tensor in storage.read(0):
        tensor.zero_()
    assert storage.read(0)[2].abs().sum() > 0


def test_trap57_other_memory_and_another_form_of_the_live_tensors() -> None:
    lives = [torch.randn(30, 40, 3, 3), torch.randn(10)]
    storage = AverageStorage(lives, 1, dtype=torch.float32, device=None)
    expected = [live.clone() for live in lives]
    stages = [
        lambda t: t.clone(),
        lambda t: t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t,
        lambda t: t.double(),
        lambda t: t.bfloat16(),
    ]
    for stage in stages:
        lives = [stage(live) * 0.5 for live in lives]
        storage = storage.bound_to(lives)
        storage.lerp_([0.25])
        expected = [
            e.to(torch.promote_types(torch.float32, live.dtype)).lerp(wide(live), 0.25)
            for e, live in zip(expected, lives, strict=True)
        ]
        for got, want in zip(storage.read(0), expected, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("size", [3, 5000, 3_000_000])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_trap49_a_whole_look_finds_any_bad_value(size: int, value: float) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        live = torch.ones(size, dtype=dtype)
        storage = AverageStorage([live, torch.ones(4)], 1, dtype=torch.float32, device=None)
        assert storage.looks_finite()
        live[size // 3] = value
        assert not storage.looks_finite()


class _Calls(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_trap64_many_small_tensors_make_few_parallel_regions() -> None:
    """A thousand small tensors are moved by as many operations as there are pages, not by thousands."""
    lives = [torch.randn(1000) for _ in range(1000)]
    storage = AverageStorage(lives, 5, dtype=torch.float32, device=None)
    pages = -(-1000 * 1000 // (SCRATCH - 1000))
    with _Calls() as calls:
        storage.lerp_([0.1] * 5)
    assert sum("lerp" in name for name in calls.names) <= pages
    assert len(calls.names) < 8 * pages


def test_memory_beside_the_averages_is_bounded() -> None:
    """At most 2% or 1 MiB, whatever the mix of sizes and dtypes."""
    for lives in ([torch.randn(1000) for _ in range(1000)], [torch.randn(3_000_000).bfloat16()], tensors()):
        storage = AverageStorage(lives, 5, dtype=torch.float32, device=None)
        seen: dict[int, int] = {}
        for group in storage._groups:
            held = [group.sources.scratch, *group.blocks.values(), *(page for page, _ in group.pages)]
            held += [source for source, _ in group.sources.noncontiguous]
            for tensor in held:
                seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        wanted = 5 * sum(wide(live).numel() * wide(live).element_size() for live in lives)
        assert sum(seen.values()) - wanted <= max(0.02 * wanted, 2**20)


def test_another_device_is_read_through_two_halves_of_the_scratch_page() -> None:
    """There is no accelerator here, so the CPU plays one: what would be converted is fetched instead."""
    lives = [torch.randn(500_000).bfloat16(), torch.randn(7000).bfloat16(), torch.randn(10).bfloat16()]
    plain, fetched = (AverageStorage(lives, 3, dtype=torch.float32, device=None) for _ in range(2))
    for group in fetched._groups:
        half = group.sources.scratch.numel() // BLOCK // 2
        for blocks, live in group.sources.converted:
            pairs = zip(blocks.split(half), live.split(half * BLOCK), strict=True)
            group.sources.offloaded.extend(pairs)
        group.sources.converted.clear()
        assert len(group.sources.offloaded) > 4
    moved(lives)
    for storage in (plain, fetched):
        storage.lerp_([0.1, 0.5, 0.9])
    for k in range(3):
        assert all(torch.equal(a, b) for a, b in zip(plain.read(k), fetched.read(k), strict=True))


@pytest.mark.parametrize("again", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
def test_trap33_a_copy_stands_on_its_own(again) -> None:
    lives = tensors()
    storage = AverageStorage(lives, 2, dtype=torch.float32, device=None)
    other = again(storage)
    assert all(group.sources is None for group in other._groups), "it holds no view of the first one's weights"
    other = other.bound_to([live.clone() for live in lives])
    moved(lives)
    storage.lerp_([0.5, 0.5])
    assert all(not torch.equal(a, b) for a, b in zip(storage.read(0)[1:5], other.read(0)[1:5], strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.float64])
def test_the_overlap_is_that_of_all_tensors_whatever_their_size_and_form(dtype: torch.dtype):
    shapes = [(), (0, 3), (3,), (40, 40), (7, 1024), (300, 700), (30, 40, 3, 3)]
    before = [torch.randn(shape, dtype=dtype) for shape in shapes]
    lives = [tensor.clone() for tensor in before]
    lives[-1] = lives[-1].to(memory_format=torch.channels_last)
    storage = AverageStorage(lives, 2, dtype=torch.float32, device=None)
    storage.lerp_([0.5, 0.5])
    for live in lives:
        live.add_(torch.randn_like(live))

    def real(tensor: Tensor) -> Tensor:
        return (torch.view_as_real(tensor) if dtype.is_complex else tensor).double()

    # A large tensor is taken in parts, each minus its own mean: the same to within what the means of noise are apart.
    pairs = [(real(live), real(old) - real(old).mean()) for live, old in zip(lives, before, strict=True) if old.numel()]
    shared = sum(float((live * old).sum()) for live, old in pairs)
    own = sum(float(old.square().sum()) for _, old in pairs)
    variance = sum(float(old.square().sum() * live.square().mean()) for live, old in pairs)
    assert storage.overlap(1) == pytest.approx((shared, own, variance), rel=1e-3)


def test_constants_overlap_with_nothing():
    lives = [torch.full((3, 1500), 0.1), torch.ones(7), torch.zeros(40_000)]
    storage = AverageStorage(lives, 1, dtype=torch.float32, device=None)
    for live in lives:
        live.normal_()
    assert storage.overlap(0) == (0.0, 0.0, 0.0)
