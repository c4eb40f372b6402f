"""Small models with every kind of tensor, and short trainings that change all of them."""

import gc
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from emabank import BestTracker, EMABank


class Odd(nn.Module):
    """Scalars, empty, complex and integer tensors, transposed memory, a frozen weight, a mask, an extra buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.scalar = nn.Parameter(torch.tensor(0.5))
        self.empty = nn.Parameter(torch.zeros(0, 3))
        self.wave = nn.Parameter(torch.randn(3, 4, dtype=torch.complex64))
        self.transposed = nn.Parameter(torch.randn(70, 90).t())
        self.strided = nn.Parameter(torch.randn(80, 160)[:, ::2])
        self.exact = nn.Parameter(torch.randn(5, dtype=torch.float64))
        self.frozen = nn.Parameter(torch.randn(7), requires_grad=False)
        self.table = nn.Parameter(torch.arange(4), requires_grad=False)
        self.register_buffer("mask", torch.full((2, 2), float("-inf")))
        self.register_buffer("seen", torch.zeros(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        extra = self.transposed.sum() + self.strided.sum() + self.wave.abs().sum() + self.exact.sum().float()
        return (x * self.scalar + extra * 1e-3 + self.frozen.sum()).mean(1, keepdim=True)


class Tied(nn.Module):
    """An embedding that is its own output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.out = nn.Linear(6, 11, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.embed(x.abs().long().clamp(max=10)))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))


def wide() -> nn.Module:
    """Tensors large enough to be averaged in blocks; no size is a multiple of a block."""
    return nn.Sequential(nn.Linear(6, 6000), nn.BatchNorm1d(6000), nn.ReLU(), nn.Linear(6000, 6))


def half_precision() -> nn.Module:
    """bfloat16 with float32 norms, large and small tensors."""
    model = nn.Sequential(nn.Linear(6, 6000), nn.LayerNorm(6000), nn.ReLU(), nn.Linear(6000, 6)).bfloat16()
    model[1].float()
    return Cast(model)


class Cast(nn.Module):
    """Runs each layer of a model of mixed precision in its own dtype."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers.children():
            x = layer(x.to(next(layer.parameters()).dtype) if list(layer.parameters()) else x)
        return x.float()


class Conv(nn.Module):
    """Convolutions in channels_last."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 24, 3), nn.BatchNorm2d(24), nn.ReLU(), nn.Conv2d(24, 25, 2), nn.BatchNorm2d(25)
        ).to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.view(-1, 1, 2, 3).repeat(1, 1, 4, 4)).flatten(2).mean(2)


def crowd() -> nn.Module:
    """Many small tensors: more than fit in one page of the storage."""
    return nn.ParameterList([nn.Parameter(torch.randn(900 + i)) for i in range(230)])


def random_tensors(model: nn.Module, generator: torch.Generator) -> None:
    """Give a model parameters of random shapes, strides and dtypes, some of which share memory, and odd buffers."""

    def random(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=generator))

    for number in range(random(1, 5)):
        shape = [random(0, 40) for _ in range(random(0, 3))]
        dtype = (torch.float32, torch.float32, torch.bfloat16, torch.float64, torch.complex64)[random(0, 4)]
        step = random(1, 3)
        values = torch.randn([size * step for size in shape], generator=generator, dtype=torch.float64).to(dtype)
        values = values[tuple(slice(None, None, step) for _ in shape)]
        values = values.permute(torch.randperm(values.dim(), generator=generator).tolist())
        parameter = nn.Parameter(values if random(0, 1) else values.contiguous(), requires_grad=random(0, 3) > 0)
        model.register_parameter(f"random{number}", parameter)
        if values.dim() and len(values) > 1 and not values.is_complex() and random(0, 2) == 0:
            model.register_parameter(f"shared{number}", nn.Parameter(parameter.data[random(0, 1) :]))
    model.register_buffer("expanded", torch.ones(1).expand(3), persistent=False)
    model.register_buffer("mask", torch.full((2, 2), float("-inf")), persistent=random(0, 1) == 1)
    model.register_buffer("sparse", torch.eye(3).to_sparse(), persistent=False)


ZOO: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp,
    "wide": wide,
    "half_precision": half_precision,
    "conv": Conv,
    "odd": Odd,
    "tied": Tied,
    "crowd": crowd,
}


def build(name: str, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return ZOO[name]()


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, generator: torch.Generator) -> None:
    """One step on random data; a ParameterList, which has no forward pass, is pulled towards random values."""
    if isinstance(model, nn.ParameterList):
        loss = sum(((p - torch.randn(p.shape, generator=generator)) ** 2).mean() for p in model)
    else:
        loss = model(torch.randn(16, 6, generator=generator) * 3).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01, momentum=0.5)


def train(model: nn.Module, steps: int, after=lambda: None, seed: int = 1) -> None:
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)  # dropout
    optimizer = sgd(model)
    for _ in range(steps):
        train_step(model, optimizer, generator)
        after()


def small_bank(averages=(0.9,), **options) -> tuple[nn.Module, EMABank]:
    model = build("mlp")
    return model, EMABank(model, averages, **{"every": 1, **options})


def alive_storages() -> dict[int, int]:
    """The bytes of every storage that is alive, by address."""
    alive = [
        value.untyped_storage()
        for value in gc.get_objects()
        if type(value) in (Tensor, nn.Parameter) and value.layout is torch.strided
    ]
    return {storage.data_ptr(): storage.nbytes() for storage in alive}


# A classifier, for the integrations -----------------------------------------------------------------------------------


def data(count: int, seed: int) -> TensorDataset:
    """Points of three classes."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 4, generator=generator)
    return TensorDataset(inputs, (inputs @ torch.arange(12.0).reshape(4, 3).sin()).argmax(1))


def network(*, norm: bool = True, dropout: float = 0.0) -> nn.Sequential:
    """A classifier with the same weights at each call."""
    torch.manual_seed(5)
    layers = [nn.Linear(4, 6), nn.BatchNorm1d(6) if norm else nn.Identity(), nn.Dropout(dropout), nn.Linear(6, 3)]
    return nn.Sequential(*layers)


def accuracy_and_loss(model: nn.Module, tensors: Sequence[Tensor]) -> tuple[float, float]:
    """Over all data at once, in eval mode."""
    inputs, targets = tensors
    with torch.no_grad():
        logits = model.eval()(inputs)
    return (logits.argmax(1) == targets).float().mean().item(), cross_entropy(logits, targets).item()


def copies(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


# A training that a BestTracker observes -------------------------------------------------------------------------------

BANK = EMABank(nn.Linear(2, 1), [0.5, 0.9])  # for tests that need its names only
NAMES = ("live", "ema-0.5", "ema-0.9")
BOTH: dict[str, Literal["max", "min"]] = {"accuracy": "max", "loss": "min"}


def numbers(accuracy: float, loss: float = 1.0) -> dict[str, float]:
    return {"accuracy": accuracy, "loss": loss}


class Run:
    """A training run of a few steps an epoch; every epoch has its own weights, live and averaged."""

    def __init__(self, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        self.bank = EMABank(self.model, [0.5, 0.9], every=1)
        self.tracker = BestTracker(self.bank, BOTH, **options)
        self.weights: dict[tuple[str, int], dict[str, Tensor]] = {}

    def epoch(self, epoch: int, metrics: dict[Any, dict[str, float]], **options: Any) -> None:
        generator = torch.Generator().manual_seed(epoch)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator) / 10)
        self.bank.update()
        self.weights |= {(name, epoch): self.bank.weights(name) for name in NAMES}
        self.tracker.observe(epoch, metrics, **options)
