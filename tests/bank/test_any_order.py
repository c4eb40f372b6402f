"""The bank as a state machine: after any sequence of operations its averages equal the oracle's.

Steps, flushes, resets, applied averages with and without an exception, NaN weights, other memory layouts, saving
and loading, damaged states, copies; with parameters of random shapes, strides and dtypes.
A few sequences here; tests/torture/test_any_order.py tries many.
"""

import copy
import io
import itertools
import pickle
import tempfile
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from torch import nn

from emabank import EMABank, checkpoint
from tests.bank.test_damaged_state import damages
from tests.support.models import random_tensors
from tests.support.oracle import AVERAGES, Oracle, live_weights, oracles, states_equal

# A first step that is as large as the weights looks like a checkpoint that was loaded.
pytestmark = pytest.mark.filterwarnings("ignore:At the first step the weights are")

NAMES = sorted(AVERAGES)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


class Net(nn.Module):
    """Small and large tensors, statistics, a counter, tied and frozen weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 7)
        self.norm = nn.BatchNorm1d(7)
        self.large = nn.Parameter(torch.randn(40, 1100) / 30)  # several blocks and a partial one
        self.tied = self.first
        self.frozen = nn.Parameter(torch.randn(5), requires_grad=False)
        self.scalar = nn.Parameter(torch.tensor(0.5))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.norm(self.first(inputs)) * self.scalar + self.large.sum()


class AnyOrder(RuleBasedStateMachine):
    """A bank and oracles that take the same steps."""

    @initialize(
        every=st.sampled_from([1, 2, 3]),
        dtype=st.sampled_from(sorted(DTYPES)),
        wide=st.booleans(),
        policy=st.sampled_from(["raise", "skip"]),
        seed=st.integers(0, 1000),
        names=st.sets(st.sampled_from(NAMES), min_size=1),
    )
    def begin(self, every: int, dtype: str, wide: bool, policy: str, seed: int, names: set[str]) -> None:
        self.rules = {name: AVERAGES[name] for name in sorted(names)}
        self.generator = torch.Generator().manual_seed(seed)
        self.options: dict[str, Any] = {
            "every": every, "on_nonfinite": policy, "dtype": torch.float64 if wide else torch.float32,
        }  # fmt: skip
        self.model = Net().to(DTYPES[dtype])
        random_tensors(self.model, self.generator)
        self.bank = EMABank(self.model, self.rules, **self.options)
        self.oracles: dict[str, Oracle] = {name: oracles(self.model, every)[name] for name in self.rules}

    @property
    def live(self) -> dict[str, torch.Tensor]:
        return live_weights(self.model)

    # Rules -----------------------------------------------------------------------------------------------------------

    @rule(size=st.sampled_from([0.0, 0.01, 1.0]), times=st.integers(1, 4))
    def step(self, size: float, times: int) -> None:
        for _ in range(times):
            with torch.no_grad():
                for tensor in [*self.model.parameters(), self.model.norm.running_mean]:
                    tensor.add_(torch.randn(tensor.shape, generator=self.generator).to(tensor.dtype), alpha=size)
            due = (self.bank.num_steps + 1) % self.options["every"] == 0
            assert self.bank.update() == due
            for oracle in self.oracles.values():
                oracle.after_step(self.live)

    @rule()
    def flush(self) -> None:
        if self.bank.flush():
            for oracle in self.oracles.values():
                oracle.take(self.live)

    def pick(self, number: int) -> str:
        """The name of an average of this bank."""
        return [*self.rules][number % len(self.rules)]

    @rule(number=st.none() | st.integers(0, 20))
    def reset(self, number: int | None) -> None:
        name = None if number is None else self.pick(number)
        self.bank.reset(name)
        for reset in self.rules if name is None else [name]:
            self.oracles[reset].reset(self.live)

    @rule(
        where=st.sampled_from(["first.weight", "norm.running_var", "large", "scalar"]),
        value=st.sampled_from(["nan", "inf"]),
    )
    def step_with_nonfinite_weights(self, where: str, value: str) -> None:
        """One step with NaN or inf in the weights, which the user then repairs."""
        before = copy.deepcopy(self.model.state_dict())
        bad = self.model.state_dict()[where]
        bad[(0,) * bad.dim()] = float(value)
        skipped, updates = self.bank.num_skipped, self.bank.num_updates
        due = (self.bank.num_steps + 1) % self.options["every"] == 0
        if due and self.options["on_nonfinite"] == "raise":
            with pytest.raises(FloatingPointError, match="hold NaN or inf"):
                self.bank.update()
        else:
            assert not self.bank.update()
            assert self.bank.num_skipped == skipped + due
        assert self.bank.num_updates == updates
        with torch.no_grad():
            for key, tensor in self.model.state_dict().items():
                tensor.copy_(before[key])
        for oracle in self.oracles.values():
            oracle.step += 1

    @rule(number=st.integers(0, 20), fails=st.booleans())
    def apply(self, number: int, fails: bool) -> None:
        name = self.pick(number)
        before, average = copy.deepcopy(self.model.state_dict()), self.bank.weights(name)
        training = self.model.training
        try:
            with self.bank.applied(name):
                for key, tensor in self.model.state_dict().items():
                    assert torch.equal(tensor, average[key].to(tensor.dtype)), key
                self.model.eval()
                with pytest.raises(RuntimeError):
                    self.bank.update()
                if fails:
                    raise InterruptedError("in the middle of an evaluation")
        except InterruptedError:
            pass
        self.model.train(training)
        assert states_equal(self.model.state_dict(), before)

    @rule(form=st.sampled_from(["dict", "file", "pickle", "deepcopy", "bank.pt"]))
    def resume_in_another_bank(self, form: str) -> None:
        if form in ("pickle", "deepcopy"):
            bank = copy.deepcopy(self.bank) if form == "deepcopy" else pickle.loads(pickle.dumps(self.bank))
            self.bank, self.model = bank, bank.model
            return
        if form.startswith("bank"):
            with tempfile.TemporaryDirectory() as folder:
                checkpoint.save(self.bank, f"{folder}/{form}")
                self.model = copy.deepcopy(self.model)
                self.bank = EMABank(self.model, self.rules, **self.options)
                checkpoint.load(self.bank, f"{folder}/{form}")
            return
        state = self.bank.state_dict()
        if form == "file":
            file = io.BytesIO()
            torch.save(state, file)
            state = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
        self.model = copy.deepcopy(self.model)
        self.bank = EMABank(self.model, self.rules, **self.options)
        self.bank.load_state_dict(state)

    @rule(seed=st.integers(0, 1000))
    def change_memory_layout(self, seed: int) -> None:
        """The same values with other strides, or in other tensors."""
        generator = torch.Generator().manual_seed(seed)
        for module in self.model.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                order = torch.randperm(parameter.dim(), generator=generator)
                data = parameter.data.permute(order.tolist()).contiguous().permute(order.argsort().tolist())
                if seed % 2:
                    parameter.data = data
                else:
                    module.register_parameter(name, nn.Parameter(data, requires_grad=parameter.requires_grad))

    @rule(number=st.integers(0, 20))
    def copy_an_average_into_the_model(self, number: int) -> None:
        self.bank.copy_to(self.model, self.pick(number))

    @rule(number=st.integers(0, 3000))
    def load_a_damaged_state(self, number: int) -> None:
        """Refused without a change, unless it is valid for this model, such as a NaN for an empty tensor."""
        intact = self.bank.state_dict()
        _, state = next(itertools.islice(damages(intact), number, None), ("", intact))
        try:
            self.bank.load_state_dict(state)
        except ValueError:
            return
        self.bank.load_state_dict(intact)

    # Invariant --------------------------------------------------------------------------------------------------------

    @invariant()
    def averages_are_the_oracles(self) -> None:
        if not hasattr(self, "bank"):
            return
        live = self.live
        for name, oracle in self.oracles.items():
            wanted = oracle.value() if oracle.samples else live  # every read before the first sample gives these
            weights = self.bank.weights(name)
            points = [wanted, oracle.initial, *(sample for _, sample in oracle.samples)]
            for key, value in wanted.items():
                # Rounding is relative to the averaged samples, which may cancel.
                scale = max((float(point[key].abs().max()) for point in points if value.numel()), default=0.0)
                tolerance = 1e-12 if weights[key].dtype in (torch.float64, torch.complex128) else 5e-6
                torch.testing.assert_close(
                    weights[key].to(value.dtype), value, rtol=0, atol=tolerance * scale, msg=f"{name}: {key}"
                )
        assert self.bank.num_steps == self.oracles[self.pick(0)].step


OPTIONS: dict[str, Any] = {
    "phases": (Phase.explicit, Phase.generate),
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow],
}
AnyOrder.TestCase.settings = settings(max_examples=10, stateful_step_count=12, **OPTIONS)
TestAnyOrder = AnyOrder.TestCase
