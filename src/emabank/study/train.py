"""The only training loop: one run with a bank beside it, measured after each epoch, resumable after any step.

What it chooses, it chooses on validation images; test images are met here for curves alone, which nothing reads back.
May import the library's public names, predict, data, metrics, schedules and config.
"""

import math
import time
from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from emabank import Best, BestTracker, EMABank, Uniform, recalibrate_batchnorm
from emabank.study.averages import columns, rules
from emabank.study.config import BatchNorm, Keep, RunConfig
from emabank.study.data.loader import Loader, batches
from emabank.study.data.splits import Parts
from emabank.study.measures import Measured, by_split, evaluation_batch, measures
from emabank.study.predict import computing, predict_each
from emabank.study.rows import Part
from emabank.study.schedules import Schedule

SWA = "swa"
LIVE = "live"
BATCHNORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)

Set = tuple[str, BatchNorm]
"""Which weights, with which statistics."""


class Kept(NamedTuple):
    """Weights that a run keeps, as a state dict of the model."""

    keep: Keep
    tensors: dict[str, Tensor]


class Store(Protocol):
    """Where a run's checkpoints go."""

    def save_checkpoint(self, state: dict[str, Any]) -> None: ...

    def save_fork(self, epoch: int, state: dict[str, Any]) -> None: ...


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop; a checkpoint has been written. It has not failed, and is no `Exception`."""


class Training:
    """One run as it stands: model, optimizer, averages, what was measured and what is kept."""

    def __init__(
        self, config: RunConfig, parts: Parts, make_model: Callable[[], nn.Module], *, device: torch.device
    ) -> None:
        self.config, self.device = config, device
        self._recipe = config.recipe
        training, hardware = self._recipe.training, self._recipe.hardware
        torch.manual_seed(config.seed)
        form = torch.channels_last if hardware.channels_last else torch.contiguous_format
        self.model = self.placed(make_model())
        self._forward: Callable[[Tensor], Tensor] = torch.compile(self.model) if hardware.compile else self.model
        self.has_batchnorm = any(isinstance(each, BATCHNORM) for each in self.model.modules())
        self.loader = Loader(
            parts.train,
            size=training.batch,
            normalisation=parts.normalisation,
            crop=self._recipe.data.crop or 0,
            flip=bool(self._recipe.data.flip),
            seed=config.seed,
            device=device,
            memory_format=form,
        )
        self._parts = parts
        self._plain = {
            split: batches(
                part, size=evaluation_batch(part), normalisation=parts.normalisation, device=device, memory_format=form
            )
            for split, part in by_split(parts).items()
        }
        self.schedule = _schedule(config, steps_per_epoch=len(self.loader))
        self.optimizer = torch.optim.SGD(
            self.model.parameters(),
            lr=config.rate,
            momentum=training.momentum,
            nesterov=training.momentum > 0,
            weight_decay=training.weight_decay or 0.0,
            fused=hardware.fused,
        )
        self._scaler = torch.amp.GradScaler(device.type, enabled=hardware.precision == "fp16")
        self.bank = EMABank(
            self.model,
            rules(self._recipe.averages, self.schedule.steps),
            every=self._recipe.averages.every,
            on_nonfinite="skip",
        )
        self.bank.attach(self.optimizer)  # a step that the loss scaler leaves out is no step
        self.swa: EMABank | None = None
        self.averages = BestTracker(self.bank)
        self.live = BestTracker(self.bank, {"accuracy": "max"})
        self.steps = 0
        self.diverged = False
        self.measured: list[Measured] = []
        self.test_curves: list[Measured] = []
        self.losses: list[float] = []
        self._loss = torch.zeros((), dtype=torch.float64)
        self._kept: dict[str, dict[str, Tensor]] = {}

    def placed(self, model: nn.Module) -> nn.Module:
        """A network where and in the memory order in which this run computes: another order has other last digits."""
        if self._recipe.hardware.channels_last:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return model.to(self.device)

    # The loop ---------------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """How many epochs are finished."""
        return len(self.losses)

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left to train."""
        return self.diverged or self.epoch >= self._recipe.training.epochs

    def run(
        self,
        store: Store | None = None,
        *,
        forks: Iterable[int] = (),
        checkpoint_seconds: float = 60.0,
        tell: Callable[[int, str], None] = lambda epoch, words: None,
        observe: Callable[["Training"], None] = lambda training: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Train to the end from where it stands; checkpoints go to the store, those at the epochs in `forks` for good.

        `tell` is told of each finished epoch, `observe` sees the training after it, `should_stop` is asked after every
        step.
        """
        saved = time.monotonic()
        while not self.is_over:
            self.model.train()
            for inputs, labels in self.loader:
                self._step(inputs, labels)
                stop = should_stop()
                if store is not None and (stop or time.monotonic() - saved >= checkpoint_seconds):
                    store.save_checkpoint(self.state_dict())
                    saved = time.monotonic()
                if stop:
                    raise Interrupted(f"asked to stop in epoch {self.epoch + 1}; the same command goes on from there")
            self._end_epoch()
            if store is not None and self.epoch in forks:
                store.save_fork(self.epoch, self.state_dict())
            tell(self.epoch, self.in_short())
            observe(self)
        if store is not None:
            store.save_checkpoint(self.state_dict())

    def _step(self, inputs: Tensor, labels: Tensor) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule.rate(self.steps)
        with computing(self._recipe.hardware.precision, self.device):
            value = F.cross_entropy(self._forward(inputs), labels)
        self._scaler.scale(value).backward()
        self._scaler.step(self.optimizer)
        self._scaler.update()
        self.optimizer.zero_grad()
        self._loss += value.detach().double().cpu() * len(labels)
        self.steps += 1
        if self.swa is not None:
            self.swa.update()

    def _end_epoch(self) -> None:
        self.losses.append(float(self._loss) / len(self._parts.train))
        self._loss.zero_()
        self.diverged = not np.isfinite(self.losses[-1]) or self.bank.num_skipped > 0
        if not self.diverged:
            self._measure()
            self.diverged = not self._live_is_finite()
        if self.diverged:
            return
        if self._parts.validation is not None:
            self._choose()
        for keep in self.config.keep:
            if keep.epoch == self.epoch:
                self._kept[keep.name] = self._weights(keep.weights)
        # Not after the last epoch: the live weights that are kept are those that were measured.
        if self._recipe.training.bootstrap is not None and not self.is_over:
            self.bank.copy_to(self.model, self._recipe.training.bootstrap)
        if self.config.swa and self.epoch == self.config.constant_from:
            self._begin_swa()

    def _begin_swa(self) -> None:
        self.swa = EMABank(self.model, {SWA: Uniform()}, every=len(self.loader), on_nonfinite="skip")

    # Measuring and choosing -------------------------------------------------------------------------------------------

    def _measure(self) -> None:
        """Every set of weights on every split that is asked for, each split in one pass."""
        asked = self._recipe.measuring
        sets = self._sets()
        if "val" in self._plain:
            self.measured += self._on("val", sets)
        if asked.on_train:
            # Memorisation is a matter of the weights: once for each of them, not again with recomputed statistics.
            self.measured += self._on("train", {key: each for key, each in sets.items() if key[1] != "recomputed"})
        if asked.test_curves and self.config.trained_on == "100%":
            self.test_curves += self._on("test", sets)

    def _sets(self) -> dict[Set, dict[str, Tensor] | None]:
        sets: dict[Set, dict[str, Tensor] | None] = {(LIVE, "own"): None}
        banks = [self.bank] if self.swa is None or not self.swa.num_updates else [self.bank, self.swa]
        sets |= {(name, "averaged"): bank.functional(name) for bank in banks for name in bank.names}
        if self.has_batchnorm and self._recipe.measuring.recompute == "each-epoch":
            for bank in banks:
                recalibrate_batchnorm(bank, self._plain["train"])
                sets |= {(name, "recomputed"): bank.functional(name, batchnorm="recomputed") for name in bank.names}
        return sets

    def _on(self, split: Part, sets: dict[Set, dict[str, Tensor] | None]) -> list[Measured]:
        found = predict_each(self.model, sets, self._plain[split], precision=self._recipe.hardware.precision)
        measured: list[Measured] = []
        for (weights, batchnorm), logits in found.items():
            for metric, value in measures(split, by_split(self._parts)[split], logits).items():
                measured.append(Measured(self.epoch, weights, batchnorm, split, metric, value))
        return measured

    def _live_is_finite(self) -> bool:
        """Whether all that the live weights said in this epoch is finite; in the last one they are made to speak."""
        said = [each.value for each in self.measured if each.epoch == self.epoch and each.weights == LIVE]
        if not said and self.is_over:
            said = [each.value for each in self._on("train", {(LIVE, "own"): None})]
        return all(math.isfinite(value) for value in said)

    def _choose(self) -> None:
        """Tell the trackers how the averages and the live weights did on validation, with averaged statistics."""
        found: dict[str, dict[str, float]] = {}
        for each in self.measured:
            if each.epoch == self.epoch and each.split == "val" and each.batchnorm != "recomputed":
                found.setdefault(each.weights, {})[each.metric] = each.value
        found.pop(SWA, None)
        self.live.observe(self.epoch, {LIVE: found.pop(LIVE)})
        self.averages.observe(self.epoch, found)
        slowest = self._recipe.averages.names[-1]
        for criterion in ("accuracy", "loss"):
            best = self._best(self.averages, criterion)
            if best is not None and best.epoch == self.epoch:
                self._kept[f"slowest-{criterion}"] = self._weights(slowest)

    @staticmethod
    def _best(tracker: BestTracker, criterion: str) -> Best | None:
        try:
            return tracker.best(criterion)
        except LookupError:  # nothing was finite so far
            return None

    def _weights(self, name: str) -> dict[str, Tensor]:
        bank = self.swa if name == SWA and self.swa is not None else self.bank
        return {key: tensor.cpu() for key, tensor in bank.weights(name).items()}

    def in_short(self) -> str:
        """How the last epoch went, for a progress display."""
        rate = f"rate {self.schedule.rate(max(0, self.steps - 1)):.3g}"
        if self.diverged:
            return f"{rate}, diverged"
        shown = [each for each in self.measured or self.test_curves if each.epoch == self.epoch]
        shown = [each for each in shown if each.metric == "accuracy" and each.split != "train"]
        live = [each.value for each in shown if each.weights == LIVE]
        others = [each for each in shown if each.weights != LIVE]
        if not live or not others:
            return f"{rate}, loss {self.losses[-1]:.3f}"
        best = max(others, key=lambda each: each.value)
        return f"{rate}, live {100 * live[0]:.1f}%, {best.weights} {100 * best.value:.1f}%"

    # What is kept -----------------------------------------------------------------------------------------------------

    def chosen(self) -> dict[str, dict[str, Any]]:
        """What validation chose: per criterion the average and the epoch, and for the live weights the epoch."""
        live = self._best(self.live, "accuracy")
        by_accuracy, by_loss = (self._best(self.averages, criterion) for criterion in ("accuracy", "loss"))
        if live is None or by_accuracy is None or by_loss is None:
            return {}
        return {
            LIVE: {"epoch": live.epoch, "value": live.value},
            **{b.criterion: {"average": b.average, "epoch": b.epoch, "value": b.value} for b in (by_accuracy, by_loss)},
        }

    def kept(self) -> list[Kept]:
        """All weights that the finished run keeps, batch-norm statistics not yet recomputed."""
        last = self.epoch
        if self.diverged:
            return []
        kept = [Kept(Keep(weights=LIVE, epoch=last, batchnorm="own", selected_by="last"), self._weights(LIVE))]
        if self.swa is not None and self.swa.num_updates:
            recomputed = "recomputed" if self.has_batchnorm else "averaged"
            keep = Keep(weights=SWA, epoch=last, batchnorm=recomputed, selected_by="last")
            kept.append(Kept(keep, self._weights(SWA)))
        kept += [Kept(keep, self._kept[keep.name]) for keep in self.config.keep]
        kept += self._kept_by_validation()
        # Without batch norm both columns of a criterion are the same weights where it chose the slowest average.
        return list({each.keep.name: each for each in kept}.values())

    def _kept_by_validation(self) -> list[Kept]:
        chosen = self.chosen()
        if not chosen:
            return []
        live = Keep(weights=LIVE, epoch=chosen[LIVE]["epoch"], batchnorm="own", selected_by="accuracy")
        kept = [Kept(live, dict(self.live.weights("accuracy")))]
        for criterion in ("accuracy", "loss"):
            best = chosen[criterion]
            for keep in columns(self._recipe.averages, best["average"], best["epoch"], criterion, self.has_batchnorm):
                own = keep.weights == best["average"] and keep.batchnorm == "averaged"
                tensors = self.averages.weights(criterion) if own else self._kept[f"slowest-{criterion}"]
                kept.append(Kept(keep, dict(tensors)))
        return kept

    def history(self) -> list[dict[str, Any]]:
        """What is known of each epoch beside what was measured."""
        last_steps = [(epoch + 1) * len(self.loader) - 1 for epoch in range(self.epoch)]
        return [
            {"epoch": epoch + 1, "rate": self.schedule.rate(step), "training_loss": value}
            for epoch, (step, value) in enumerate(zip(last_steps, self.losses, strict=True))
        ]

    def plain_batches(self, split: Part) -> Any:
        """The images of a split in order, without augmentation."""
        return self._plain[split]

    # State ------------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All that the rest of the run depends on; loads with `weights_only=True`."""
        random = {"cpu": torch.get_rng_state()}
        if self.device.type != "cpu":
            random[self.device.type] = torch.get_device_module(self.device).get_rng_state()
        return {
            "model": {key: tensor.detach().cpu().clone() for key, tensor in self.model.state_dict().items()},
            "optimizer": deepcopy(self.optimizer.state_dict()),  # it hands out its own tensors, and keeps those given
            "scaler": self._scaler.state_dict(),
            "loader": self.loader.state_dict(),
            "bank": self.bank.state_dict(),
            "swa": None if self.swa is None else self.swa.state_dict(),
            "averages": self.averages.state_dict(),
            "live": self.live.state_dict(),
            "steps": self.steps,
            "diverged": self.diverged,
            "measured": [list(each) for each in self.measured],
            "test_curves": [list(each) for each in self.test_curves],
            "losses": list(self.losses),
            "loss": self._loss.clone(),
            "kept": dict(self._kept),
            "random": random,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where the run that gave `state` stood; it may be a fork of another run."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(deepcopy(state["optimizer"]))
        self._scaler.load_state_dict(state["scaler"])
        self.loader.load_state_dict(state["loader"])
        self.bank.reset()  # or it would warn, at its first step, of weights that were loaded behind its back
        self.bank.load_state_dict(state["bank"])
        self.averages.load_state_dict(state["averages"])
        self.live.load_state_dict(state["live"])
        self.steps, self.diverged = state["steps"], state["diverged"]
        self.measured = [Measured(*each) for each in state["measured"]]
        self.test_curves = [Measured(*each) for each in state["test_curves"]]
        self.losses = list(state["losses"])
        self._loss = state["loss"].clone()
        self._kept = dict(state["kept"])
        begun = self.config.swa and self.epoch >= (self.config.constant_from or 0)
        if begun:
            self._begin_swa()
            if self.swa is not None and state["swa"] is not None:
                self.swa.load_state_dict(state["swa"])
        torch.set_rng_state(state["random"]["cpu"])
        if self.device.type in state["random"] and self.device.type != "cpu":
            torch.get_device_module(self.device).set_rng_state(state["random"][self.device.type])


def _schedule(config: RunConfig, *, steps_per_epoch: int) -> Schedule:
    training = config.recipe.training
    return Schedule(
        training.schedule,
        peak=config.rate,
        epochs=training.epochs,
        steps_per_epoch=steps_per_epoch,
        warmup_epochs=training.warmup_epochs or 0.0,
        milestones=tuple(share * training.epochs for share in training.milestones),
        factor=training.factor,
        constant_from=config.constant_from,
    )
