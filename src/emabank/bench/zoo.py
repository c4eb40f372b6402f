"""The models whose averages are timed and weighed, and which of their tensors an average holds."""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from emabank.study.models import resnet


class Block(nn.Module):
    """A transformer block as GPT-2 has it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """GPT-2 small by default: 124M parameters, the output layer tied to the embedding."""

    def __init__(
        self, vocabulary: int = 50257, context: int = 1024, width: int = 768, heads: int = 12, depth: int = 12
    ):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, indices: Tensor) -> Tensor:
        x = self.tokens(indices) + self.positions.weight[: indices.shape[1]]
        return self.head(self.norm(self.blocks(x)))


# By millions of parameters: vocabulary, context, width, heads, depth. The small ones have a smaller vocabulary, so that
# most of every model is in its blocks.
GPTS: Mapping[int, tuple[int, int, int, int, int]] = {
    1: (2048, 128, 128, 2, 4),
    4: (3072, 256, 256, 4, 4),
    16: (6144, 512, 512, 8, 4),
    64: (17664, 1024, 768, 12, 7),
    128: (25600, 1024, 1024, 16, 8),
    256: (45056, 1024, 1280, 20, 10),
    500: (50257, 1024, 1536, 24, 15),
}


def gpt(millions: int) -> GPT:
    """A transformer with about so many million parameters.

    >>> with torch.device("meta"):
    ...     sum(parameter.numel() for parameter in gpt(500).parameters())
    503743488
    """
    if millions not in GPTS:
        raise ValueError(f"there is no GPT of {millions} million parameters; there are {', '.join(map(str, GPTS))}")
    return GPT(*GPTS[millions])


ZOO: dict[str, Callable[[], nn.Module]] = {
    "resnet20": lambda: resnet.resnet20(classes=10),
    "resnet18": lambda: resnet.resnet18(classes=10),
    "gpt124m": GPT,
    **{f"gpt{millions}m": partial(gpt, millions) for millions in GPTS},
    "small1000": lambda: nn.Sequential(*(nn.Linear(16, 16) for _ in range(500))),  # 1000 tensors of 256 and 16
}
BF16 = "-bf16"


def names() -> list[str]:
    """Every name that `build` takes."""
    return [*ZOO, *(name + BF16 for name in ZOO)]


def build(name: str) -> nn.Module:
    """A freshly initialised model in training mode; the ending `-bf16` turns all its floating tensors to bfloat16."""
    base = name.removesuffix(BF16)
    if base not in ZOO:
        raise ValueError(f"there is no model {name!r}; there are {', '.join(names())}")
    torch.manual_seed(0)
    model = ZOO[base]()
    return model.to(torch.bfloat16) if name.endswith(BF16) else model


def averaged_tensors(model: nn.Module) -> list[Tensor]:
    """What one average of this model holds: each parameter once, and the running statistics of batch norm."""
    statistics = [
        buffer
        for name, buffer in model.named_buffers()
        if name.rpartition(".")[2] in ("running_mean", "running_var") and buffer.is_floating_point()
    ]
    return [*model.parameters(), *statistics]
