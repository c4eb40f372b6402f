"""Fine-tuning with LoRA: only the adapter is averaged, and the best average is saved as an adapter that peft loads.

`python examples/lora.py FOLDER` takes under a minute; needs `pip install transformers peft`. A small GPT-2 trains on
the source of one standard-library module, its adapter on that of another.
"""

import argparse
import inspect
import json
import sys
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from emabank import EMA, BestTracker, EMABank

LENGTH = 32


def pieces(module: object) -> Tensor:
    text = torch.tensor(list(inspect.getsource(module).encode()))  # type: ignore[arg-type]
    return text[: len(text) // LENGTH * LENGTH].view(-1, LENGTH)


def train(model: nn.Module, data: Tensor, *, steps: int, rate: float, bank: EMABank | None = None) -> None:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=rate)
    model.train()
    for _ in range(steps):
        batch = data[torch.randint(len(data), (8,))]
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if bank is not None:
            bank.update()


def main(folder: str = "adapter", *, steps: int = 240) -> dict[str, float]:
    """Fine-tune, save the best adapter, and return the test loss of the base model, live weights and averages."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=256, n_positions=LENGTH, n_embd=48, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    base = GPT2LMHeadModel(config)
    train(base, pieces(argparse), steps=steps, rate=3e-3)
    base.save_pretrained(Path(folder) / "base")

    data = pieces(json.decoder)[torch.randperm(len(pieces(json.decoder)))]
    training, validation, test = data.tensor_split([len(data) * 6 // 10, len(data) * 8 // 10])

    def loss(model: nn.Module, samples: Tensor = test) -> float:
        with torch.no_grad():
            return model.eval()(input_ids=samples, labels=samples).loss.item()

    losses = {"base": loss(base)}
    model = get_peft_model(base, LoraConfig(r=8, lora_alpha=32, target_modules=["c_attn", "c_fc"]))
    bank = EMABank(model, {f"half-life {life}": EMA(half_life=life) for life in (5, 20)}, parameters="trainable")
    tracker = BestTracker(bank, {"loss": "min"}, unit="round")
    for epoch in range(6):
        train(model, training, steps=steps // 6, rate=2e-2, bank=bank)
        tracker.evaluate(epoch, lambda model: {"loss": loss(model, validation)})
    losses |= bank.evaluate(loss)

    best = tracker.best("loss")
    model.save_pretrained(folder, state_dict=tracker.weights("loss"))  # adapter_model.safetensors, as peft writes it
    adapted = PeftModel.from_pretrained(GPT2LMHeadModel.from_pretrained(Path(folder) / "base"), folder)
    losses["saved"] = loss(adapted)

    adapter = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    print(f"test loss in nats per byte; {adapter:,} of {model.num_parameters():,} weights are averaged")
    for name, value in losses.items():
        print(f"{name:>14}  {value:.3f}{f'  ({best.average} of round {best.epoch})' if name == 'saved' else ''}")
    return losses


if __name__ == "__main__":
    main(*sys.argv[1:2])
