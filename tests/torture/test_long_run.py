"""Long runs: averages after many updates compared with a float64 oracle, and memory that does not grow.

The bound. An update is a ← a + w·(x − a) in float32 (u = 2⁻²⁴, the largest relative error of one rounding). Its three
roundings, and that of w itself, leave at most u·|x − a|·w three times and u·|a| once: with |x − a| ≤ 2M for weights of
size M and w ≤ 1 that is at most e = u·M·(1 + 6w). An average forgets its own roundings as it forgets its samples: after
n updates the error is at most Σ e·Π(1 − w) over the later ones.
An EMA of decay α has w = 1 − α, so that the sum is below e / (1 − α): 2⁻²⁴·(1 + 6w) / (1 − α) of M, for α = 0.998
3.0e-5. A uniform mean has w = 1/k, and Π(1 − w) from k to n is k/n, so that the sum is u·M·((n + 1)/2 + 6): that is the
worst case; roundings that go either way by chance add up to about u·M·√(n/3), which is what is seen.
"""

import gc
import mmap
import resource
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from emabank import EMA, EMABank, Uniform, checkpoint
from emabank.selection import BestTracker
from tests.torture.faults import amounts, faults

UNIT = 2.0**-24
DECAYS = (0.9, 0.998, 0.9998)


class Exact:
    """The same averages in float64."""

    def __init__(self, first: Tensor) -> None:
        self.averages: dict[str, Tensor] = {f"ema-{decay}": first.double().clone() for decay in DECAYS}
        self.averages["uniform"] = torch.zeros_like(first, dtype=torch.float64)
        self.count = 0

    def update(self, live: Tensor) -> None:
        self.count += 1
        for decay in DECAYS:
            self.averages[f"ema-{decay}"].lerp_(live.double(), 1.0 - decay)
        self.averages["uniform"] += live.double()

    def value(self, name: str) -> Tensor:
        return self.averages[name] / self.count if name == "uniform" else self.averages[name]

    def bound(self, name: str) -> float:
        """The largest possible error of float32, as a share of the largest weight."""
        if name == "uniform":
            return UNIT * ((self.count + 1) / 2 + 6)
        weight = 1.0 - float(name.removeprefix("ema-"))
        return UNIT * (1 + 6 * weight) / weight

    def by_chance(self, name: str) -> float:
        """The expected error of random roundings, with a margin for the worst of many numbers."""
        return 8 * UNIT * (self.count**0.5) if name == "uniform" else self.bound(name)


def drift(updates: int) -> dict[str, tuple[float, float]]:
    """The error and the bound of each average at the end, as shares of the largest weight."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Linear(64, 8, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.randn(8, 64, generator=generator))
    bank = EMABank(model, [*(EMA(decay, warmup=None) for decay in DECAYS), Uniform()], every=1)
    exact, largest = Exact(model.weight.detach()), 1.0
    for step in range(updates):
        with torch.no_grad():
            # A random walk with weight decay and a drift.
            model.weight.mul_(0.999).add_(torch.randn(8, 64, generator=generator), alpha=0.03).add_(1e-4)
        bank.update()
        exact.update(model.weight.detach())
        if step % 997 == 0:
            largest = max(largest, float(model.weight.detach().abs().max()))
    found: dict[str, tuple[float, float]] = {}
    for name in bank.names:
        error = float((bank.weights(name)["weight"].double() - exact.value(name)).abs().max()) / largest
        assert error <= exact.bound(name), f"{name}: {error:.2e} of {exact.bound(name):.2e}"
        assert error <= exact.by_chance(name), f"{name}: {error:.2e} of {exact.by_chance(name):.2e}"
        found[name] = error, exact.bound(name)
    return found


@amounts("updates", 3_000, 100_000)
def test_errors_stay_within_the_bound_of_float32(updates: int) -> None:
    with faults("long run: updates") as count:
        count.count(updates=updates)
        for name, (error, bound) in drift(updates).items():  # in billionths of the largest weight
            count.count(**{f"{name}: error": round(1e9 * error), f"{name}: bound": round(1e9 * bound)})


def test_control_an_average_in_half_precision_breaks_the_bound() -> None:
    model = nn.Linear(64, 8, bias=False)
    exact, average = Exact(model.weight.detach()), model.weight.detach().bfloat16().clone()
    for _ in range(300):
        with torch.no_grad():
            model.weight.add_(1e-3)
        exact.update(model.weight.detach())
        average.lerp_(model.weight.detach().bfloat16(), 1 - 0.998)
    assert float((average.double() - exact.value("ema-0.998")).abs().max()) > exact.bound("ema-0.998")


# Memory ---------------------------------------------------------------------------------------------------------------


def resident_bytes() -> int:
    """Resident bytes of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def live_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(item), Tensor) for item in gc.get_objects())  # isinstance makes some objects warn


def run_cycles(folder: Path, count: int, *, updates: int) -> tuple[int, int]:
    """Update, save and load repeatedly; returns the growth of memory and tensors after the first third."""
    model = nn.Sequential(nn.Linear(100, 200), nn.BatchNorm1d(200), nn.Linear(200, 100))
    bank = EMABank(model, [0.9, 0.99, Uniform()], every=1)
    tracker = BestTracker(bank, {"loss": "min"}, snapshots="each", folder=folder / "snapshots")
    before = (0, 0)
    for number in range(count):
        for _ in range(updates):
            with torch.no_grad():
                model[0].weight.mul_(1.0001)
            bank.update()
        checkpoint.save(bank, folder / "bank.pt")
        checkpoint.load(bank, folder / "bank.pt")
        if number % 50 == 0:
            tracker.observe(number, {name: {"loss": 1 / (number + 1)} for name in bank.names})
            tracker.load_state_dict(tracker.state_dict())
        with bank.applied("uniform"):
            pass
        if number == count // 3:
            before = resident_bytes(), live_tensors()
    return resident_bytes() - before[0], live_tensors() - before[1]


@amounts("times", 100, 1000)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_repeated_saving_and_loading_does_not_grow_memory(tmp_path: Path, times: int) -> None:
    with faults("long run: saving and loading") as count:
        updates = max(3, times // 50)
        grown, tensors = run_cycles(tmp_path, times, updates=updates)
        assert tensors == 0
        assert grown < 4 << 20
        count.count(cycles=times, updates=times * updates, tensors_more=tensors, bytes_more=max(0, grown))


def test_control_growing_memory_is_detected(tmp_path: Path) -> None:
    before = resident_bytes(), live_tensors()
    # Mapped memory: a tensor might reuse memory that earlier tests freed.
    with mmap.mmap(-1, 8 << 20) as block:
        block.write(b"1" * len(block))
        assert resident_bytes() - before[0] > 4 << 20
        tensors = [torch.ones(3) for _ in range(2)]
        assert live_tensors() - before[1] == len(tensors)
