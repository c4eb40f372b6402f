"""See the decayed model now: predict the loss after a learning-rate decay without training the decay.

A character transformer trains with AdamW at a constant rate on the source of Python's standard library. At five steps
t a branch forks off and decays its rate to 0 over D steps; its validation loss is the truth. The trunk keeps its rate
and sees the same batches. At t + D, what would the branch have reached? Three answers that need no branch:

- the loss of the live weights (the baseline),
- the loss of a merge of the checkpoints of [t, t + D], with weights shaped like the decay: with equal gradients on both
  paths, the merge would equal the branch (Tian et al. 2025, "WSM", arXiv 2507.17634),
- the losses of the bank's averages.

The same predictions are made at step t, from the checkpoints of [t - D, t]. That needs no further training at all, but
the branch sees D more batches.

`python experiments/decayed_model.py` trains one trunk per seed (minutes each) and resumes where it was killed.
"""

from __future__ import annotations

import copy
import hashlib
import platform
import random
import shutil
import statistics
import sys
import sysconfig
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1]))  # for `python experiments/decayed_model.py`

from emabank import EMABank
from emabank.atomic import write_atomically
from emabank.averaging import average_checkpoints
from emabank.rules import DECAY_SHAPES, DecayShape, decay_merge_weights
from experiments.record import Record, interval_text, log, parse_options, run_command

SHAPES: tuple[DecayShape, ...] = ("linear", "sqrt")
DECAYS = {name: DECAY_SHAPES[name] for name in SHAPES}
AVERAGE = "ema-3.5%"  # its mean age, half-life / ln 2 = 5 % of the run, is that of a uniform merge over D = 10 %
COLOURS = {"live": "#7f7f7f", "merge": "#2b1b6b", AVERAGE: "#e0703c"}


@dataclass(frozen=True)
class Settings:
    """One trunk and its branches."""

    steps: int = 4000
    rate: float = 6e-3
    warmup: int = 200
    batch: int = 16
    context: int = 64
    width: int = 96
    layers: int = 2
    validation: int = 512  # texts of `context` characters

    @property
    def window(self) -> int:
        """D, the steps of a decay and of a merge: 10 % of the run."""
        return self.steps // 10

    @property
    def gap(self) -> int:
        """Steps between checkpoints: a merge has 11 of them."""
        return self.steps // 100

    @property
    def forks(self) -> list[int]:
        """Steps at 30, 45, 60, 75 and 90 % of the run; the last branch ends with the trunk."""
        return [percent * self.steps // 100 for percent in range(30, 91, 15)]


# Text and network -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Corpus:
    """Text as tensors of bytes; a byte counts as a character."""

    train: Tensor
    validation: Tensor
    sha256: str


def standard_library() -> Corpus:
    """The source of the running Python's standard library, without tests. A tenth of the files is for validation."""
    root = Path(sysconfig.get_path("stdlib"))
    left_out = {"site-packages", "dist-packages", "test", "tests", "idle_test"}  # differ between machines
    files = sorted(path for path in root.rglob("*.py") if not left_out & set(path.relative_to(root).parts))
    texts = [path.read_bytes() for path in files]
    digest = hashlib.sha256(b"\0".join(texts)).hexdigest()
    random.Random(0).shuffle(texts)
    tenth = len(texts) // 10
    parts = (bytearray(b"".join(part)) for part in (texts[tenth:], texts[:tenth]))
    return Corpus(*(torch.frombuffer(part, dtype=torch.uint8).long() for part in parts), sha256=digest)


class CharTransformer(nn.Module):
    """Causal attention over the last `context` characters."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        width = settings.width
        self.embed, self.place = nn.Embedding(256, width), nn.Embedding(settings.context, width)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, settings.layers, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)

    def forward(self, text: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1])
        hidden = self.embed(text) + self.place.weight[: text.shape[1]]
        return self.head(self.norm(self.layers(hidden, mask=mask, is_causal=True)))


def windows(text: Tensor, starts: Tensor, length: int) -> Tensor:
    return text[starts[:, None] + torch.arange(length + 1)]


def loss_of(model: nn.Module, texts: Tensor) -> Tensor:
    """Nats per character."""
    return F.cross_entropy(model(texts[:, :-1]).flatten(0, 1), texts[:, 1:].flatten())


# One seed -------------------------------------------------------------------------------------------------------------


class Run:
    """The trunk of one seed. Everything that it needs to resume is in its folder."""

    def __init__(self, settings: Settings, seed: int, corpus: Corpus, folder: Path) -> None:
        self.settings, self.seed, self.folder = settings, seed, folder
        self._text = corpus.train
        generator = torch.Generator().manual_seed(0)
        starts = torch.randint(len(corpus.validation) - settings.context, (settings.validation,), generator=generator)
        self._validation = windows(corpus.validation, starts, settings.context)
        torch.manual_seed(seed)
        self.model = CharTransformer(settings)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), weight_decay=0.1, betas=(0.9, 0.99), fused=True)
        self.bank = EMABank(self.model, steps=settings.steps)
        self.row: dict[str, Any] = {}  # of the current fork: its branches are trained, its window has not ended
        self._start = time.process_time()
        folder.mkdir(parents=True, exist_ok=True)
        if (state_file := folder / "state.pt").exists():
            state = torch.load(state_file, weights_only=True)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.bank.load_state_dict(state["bank"])
            self.row, self._start = state["row"], self._start - state["seconds"]

    def seconds(self) -> float:
        """Core-seconds so far, without work that was lost when a process was killed."""
        return round(time.process_time() - self._start, 1)

    def save(self) -> None:
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "bank": self.bank.state_dict(),
            "row": self.row,
            "seconds": self.seconds(),
        }
        write_atomically(self.folder / "state.pt", lambda temporary: torch.save(state, temporary))

    def train_step(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, factor: float) -> None:
        """One step of training. The batch depends on seed and step alone, so trunk, branches and restarts agree."""
        generator = torch.Generator().manual_seed(1_000_000 * self.seed + step)
        starts = torch.randint(len(self._text) - self.settings.context, (self.settings.batch,), generator=generator)
        loss_of(model, windows(self._text, starts, self.settings.context)).backward()
        for group in optimizer.param_groups:
            group["lr"] = factor * self.settings.rate
        optimizer.step()
        optimizer.zero_grad()

    def train_to(self, end: int) -> None:
        """Train the trunk, and keep the checkpoints of the last window. A resumed run rewrites some of them."""
        gap, window = self.settings.gap, self.settings.window
        for step in range(self.bank.num_steps + 1, end + 1):
            self.train_step(self.model, self.optimizer, step, min(1.0, step / self.settings.warmup))
            self.bank.update()
            if step % gap == 0:
                torch.save(self.model.state_dict(), self._checkpoint(step))
                self._checkpoint(step - window - gap).unlink(missing_ok=True)

    def branch(self, decay: Callable[[float], float]) -> nn.Module:
        """A copy of the model, trained further at a rate that decays to 0."""
        model, optimizer = copy.deepcopy((self.model, self.optimizer))
        fork, window = self.bank.num_steps, self.settings.window
        for number in range(window):
            self.train_step(model, optimizer, fork + number + 1, decay(number / window))
        return model

    @torch.no_grad()
    def validate(self, model: nn.Module) -> float:
        model.eval()
        return round(statistics.fmean(float(loss_of(model, texts)) for texts in self._validation.split(64)), 6)

    def predictions(self) -> dict[str, float]:
        """Losses of the live weights, of every average, and of the merges of the last window."""
        losses = self.bank.evaluate(self.validate)
        step, window, gap = self.bank.num_steps, self.settings.window, self.settings.gap
        steps = range(step - window, step + 1, gap)
        files = [self._checkpoint(number) for number in steps]
        merged, model = self.folder / "merged.pt", copy.deepcopy(self.model)
        for name in SHAPES:
            average_checkpoints(files, merged, decay_merge_weights(steps, name), replace_out=True)
            model.load_state_dict(torch.load(merged, weights_only=True))
            losses[f"merge-{name}"] = self.validate(model)
        return losses

    def _checkpoint(self, step: int) -> Path:
        return self.folder / f"step-{step:06d}.pt"


def run_seed(settings: Settings, seed: int, corpus: Corpus, record: Record) -> None:
    """Train the trunk and all branches of a seed; write a row per fork. Weights stay on disk until it is done."""

    def finished() -> set[int]:
        return {row["fork"] for row in record.rows() if row["seed"] == seed}

    folder = record.folder / "unfinished" / f"seed-{seed}"
    if finished() != set(settings.forks):
        run = Run(settings, seed, corpus, folder)
        for fork in settings.forks:
            if run.bank.num_steps < fork:
                run.train_to(fork)
                branches = {name: run.validate(run.branch(decay)) for name, decay in DECAYS.items()}
                run.row = {"seed": seed, "fork": fork, "branch": branches, "at_fork": run.predictions()}
                run.save()
                log(f"seed {seed}: step {fork} of {settings.steps}, branches done, {run.seconds():.0f} core-seconds")
            if run.bank.num_steps < fork + settings.window:
                run.train_to(fork + settings.window)
                run.row["at_end"] = losses = run.predictions()
                run.row["core_seconds"] = run.seconds()
                if fork not in finished():  # it is, if the process was killed between append and save
                    record.append(run.row)
                run.save()
                log(f"seed {seed}: step {fork + settings.window}, branches {run.row['branch']}, predictions {losses}")
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # not empty while another process trains a seed
        folder.parent.rmdir()


# Results --------------------------------------------------------------------------------------------------------------


def errors(rows: list[dict[str, Any]], at: str, weights: str, decay: str) -> list[list[float]]:
    """Predicted loss - loss of the branch: a list per seed, with a value per fork."""
    seeds = sorted({row["seed"] for row in rows})
    return [[row[at][weights] - row["branch"][decay] for row in rows if row["seed"] == seed] for seed in seeds]


def mean_sizes(rows: list[dict[str, Any]], at: str, weights: str, decay: str) -> list[float]:
    """The mean |error| over the forks, per seed."""
    return [statistics.fmean(map(abs, values)) for values in errors(rows, at, weights, decay)]


def summary(rows: list[dict[str, Any]], settings: Settings, corpus: Corpus) -> str:
    """Markdown: every prediction of every decay. Intervals are 95 % t-intervals over seeds."""
    seeds = len({row["seed"] for row in rows})
    lines = [
        "# The decayed model, predicted",
        "",
        f"Seeds: {seeds}, with {len(settings.forks)} forks each; {settings.steps:,} steps of AdamW at rate "
        f"{settings.rate:g}, D = {settings.window}. An error is predicted − real loss, in nats per character. Primary: "
        f"merge-linear at t + D. Python {platform.python_version()}, corpus {corpus.sha256[:12]}.",
    ]
    for decay in DECAYS:
        truth = statistics.fmean(row["branch"][decay] for row in rows)
        lines += [
            "",
            f"## Decay: {decay} (branches: {truth:.3f} on average)",
            "",
            "| known at | weights | mean error | mean size of the error | smaller than live by | in |",
            "|---|---|---|---|---|---|",
        ]
        for at, step in (("at_end", "t + D"), ("at_fork", "t")):
            base = mean_sizes(rows, at, "live", decay)
            for weights in rows[0][at]:
                signed = [statistics.fmean(values) for values in errors(rows, at, weights, decay)]
                sizes = mean_sizes(rows, at, weights, decay)
                gains = [one - other for one, other in zip(base, sizes, strict=True)]
                cells = [step, weights, interval_text(signed), interval_text(sizes), interval_text(gains)]
                lines.append(f"| {' | '.join(cells)} | {sum(gain > 0 for gain in gains)} of {seeds} seeds |")
    return "\n".join(lines) + "\n"


def draw(figure: Figure, rows: list[dict[str, Any]]) -> None:
    shown = [loss for row in rows for loss in (*row["branch"].values(), row["at_end"]["live"])]
    limits = min(shown) - 0.01, max(shown) + 0.01
    panels = figure.subplots(1, len(DECAYS), sharex=True, sharey=True)
    for axes, decay in zip(panels, DECAYS, strict=True):
        real = [row["branch"][decay] for row in rows]
        for label, colour in COLOURS.items():
            weights = f"merge-{decay}" if label == "merge" else label
            predicted = [row["at_end"][weights] for row in rows]
            axes.scatter(real, predicted, color=colour, label=label, s=18, alpha=0.8)
        axes.axline((real[0], real[0]), slope=1, color="#444444", linewidth=0.8)
        axes.set(title=f"decay: {decay}", xlabel="loss of the branch after its decay, nats", xlim=limits, ylim=limits)
    panels[0].set_ylabel("predicted at t + D without the branch, nats")
    panels[0].legend(frameon=False, loc="lower right")


def main() -> None:
    options = parse_options(
        __doc__, seeds="10-19", steps=Settings.steps, rate=Settings.rate, out="results/decayed_model"
    )
    settings = Settings(steps=options.steps, rate=options.rate)
    corpus = standard_library()
    record = Record(options.out, {**asdict(settings), "corpus_sha256": corpus.sha256})
    for seed in options.seeds:
        run_seed(settings, seed, corpus, record)
    rows = sorted(record.rows(), key=lambda row: (row["seed"], row["fork"]))
    forks = Counter(row["seed"] for row in rows)
    rows = [row for row in rows if forks[row["seed"]] == len(settings.forks)]  # other processes may still train a seed
    record.write("summary.md", summary(rows, settings, corpus))
    record.draw("predicted.svg", lambda figure: draw(figure, rows), size=(10, 5))
    print(summary(rows, settings, corpus))


if __name__ == "__main__":
    run_command(main)
