"""A small GPT-2 trained with the Trainer of transformers; its averages are evaluated and saved with its checkpoints.

`python examples/transformers_trainer.py FOLDER` takes under a minute; needs `pip install ".[transformers]"`.
"""

import argparse
import inspect
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from emabank import EMA
from emabank.integrations.transformers import EMABankCallback

LENGTH = 32


def samples() -> tuple[list[dict[str, torch.Tensor]], list[dict[str, torch.Tensor]]]:
    """The source of a standard-library module as bytes, cut into pieces for training and for evaluation."""
    text = torch.tensor(list(inspect.getsource(argparse).encode()))
    pieces = text[: len(text) // LENGTH * LENGTH].view(-1, LENGTH)
    made = [{"input_ids": piece, "labels": piece} for piece in pieces]
    return made[:-64], made[-64:]


def main(folder: str, *, steps: int = 60) -> EMABankCallback:
    torch.manual_seed(0)
    training, evaluation = samples()
    config = GPT2Config(
        vocab_size=256, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    arguments = TrainingArguments(
        folder, max_steps=steps, learning_rate=5e-3, per_device_train_batch_size=16, eval_strategy="steps",
        eval_steps=steps // 6, save_steps=steps // 2, use_cpu=True, report_to=[], disable_tqdm=True, seed=0,
    )  # fmt: skip
    trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=training, eval_dataset=evaluation)
    rules = {f"half-life-{life}": EMA(half_life=life, warmup=None) for life in (2, 6)}
    averages = EMABankCallback(trainer, rules, every=1, criteria={"eval_loss": "min"})
    trainer.add_callback(averages)
    trainer.train()
    print(averages.tracker.advice())
    return averages


if __name__ == "__main__":
    main(*sys.argv[1:2] or ["trained"])
