"""A character transformer trained with AdamW; its averages are evaluated by loss. Without batch norm, no recalibration.

`python examples/char_transformer.py` trains on the source of a standard-library module, in under a minute.
"""

import argparse
import inspect

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from emabank import EMA, BestTracker, EMABank

LENGTH = 64


class CharTransformer(nn.Module):
    """Two layers of causal attention over the last 64 characters; embedding and output share their weights."""

    def __init__(self, characters: int, width: int = 64) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(characters, width), nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, characters, bias=False)
        self.head.weight = self.embed.weight
        nn.init.normal_(self.embed.weight, std=0.02)

    def forward(self, text: Tensor) -> Tensor:
        length = text.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        hidden = self.embed(text) + self.place(torch.arange(length))
        return self.head(self.norm(self.layers(hidden, mask=mask, is_causal=True)))


def main(*, steps: int = 300, every: int = 50) -> None:
    torch.manual_seed(0)
    text = inspect.getsource(argparse)
    known = sorted(set(text))
    numbers = torch.tensor([known.index(each) for each in text])
    learnt, kept_back = numbers[: len(numbers) * 9 // 10], numbers[len(numbers) * 9 // 10 :]
    windows = kept_back[: (len(kept_back) - 1) // LENGTH * LENGTH]
    inputs, targets = windows.view(-1, LENGTH)[:64], kept_back[1 : len(windows) + 1].view(-1, LENGTH)[:64]

    model = CharTransformer(len(known))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    # In a run this short, the warm-up of the decay would never end. Half-lives are in optimizer steps.
    rules = {f"half-life-{steps}": EMA(half_life=steps, warmup=None) for steps in (5, 15, 45)}
    bank = EMABank(model, rules, every=1)
    bank.attach(optimizer)  # updates after every optimizer.step(); the loop needs no extra line
    tracker = BestTracker(bank, {"loss": "min"}, unit="step")

    def validate(model: nn.Module) -> dict[str, Tensor]:
        losses = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), reduction="none")
        return {"loss": losses.view(-1, LENGTH).mean(1)}  # per text, as characters of one text are not independent

    for step in range(1, steps + 1):
        starts = torch.randint(len(learnt) - LENGTH - 1, (16,))
        batch = torch.stack([learnt[start : start + LENGTH + 1] for start in starts])
        F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % every == 0:
            metrics = tracker.evaluate(step, validate)
            print(step, " ".join(f"{name} {values['loss']:.3f}" for name, values in metrics.items()))
    print(tracker.advice())


if __name__ == "__main__":
    main()
