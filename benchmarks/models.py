"""The models whose averages are measured."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from emabank.study.models import resnet

BF16 = "-bf16"

# By millions of parameters: vocabulary, context, width, heads, depth. The output layer is tied to the embedding.
GPT_SIZES = {
    1: (2048, 128, 128, 2, 4),
    16: (6144, 512, 512, 8, 4),
    124: (50257, 1024, 768, 12, 12),  # GPT-2 small
    256: (45056, 1024, 1280, 20, 10),
    500: (50257, 1024, 1536, 24, 15),
}


class GPT(nn.Module):
    """A transformer like GPT-2."""

    def __init__(self, vocabulary: int, context: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        block = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, depth, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, indices: Tensor) -> Tensor:
        x = self.tokens(indices) + self.positions.weight[: indices.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(indices.shape[1], device=x.device, dtype=x.dtype)
        return self.head(self.blocks(x, mask=mask, is_causal=True))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "resnet20": partial(resnet.resnet20, classes=10),
    "resnet18": partial(resnet.resnet18, classes=10),
    "small1000": lambda: nn.Sequential(*(nn.Linear(16, 16) for _ in range(500))),  # 1,000 tensors of 256 and 16
    **{f"gpt{millions}m": partial(GPT, *size) for millions, size in GPT_SIZES.items()},
}
NAMES = [*MODELS, *(name + BF16 for name in MODELS)]


def build(name: str) -> nn.Module:
    """A new model in training mode; the suffix `-bf16` converts it to bfloat16."""
    if name not in NAMES:
        raise ValueError(f"model must be one of {', '.join(NAMES)}; got {name}")
    torch.manual_seed(0)
    model = MODELS[name.removesuffix(BF16)]()
    return model.to(torch.bfloat16) if name.endswith(BF16) else model
