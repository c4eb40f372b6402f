"""The only training loop: one run with a bank of averages, measured after each epoch, resumable after any step.

All selection is on validation images. While training, test images are only used for curves, which nothing reads back.
"""

import math
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from emabank import EMABank, Uniform, recalibrate_batchnorm
from emabank.study.averages import rules
from emabank.study.config import BatchNorm, Keep, RunConfig
from emabank.study.data.images import Images
from emabank.study.data.loader import Batches, Loader, batches
from emabank.study.data.splits import Parts, stratified_subset
from emabank.study.distributed import ALONE, ProcessGroup, SyncBatchNorm, convert_sync_batchnorm, local_statistics
from emabank.study.evaluate import EpochMetric, by_split, epoch_metrics
from emabank.study.models.whitened_cnn import WhitenedCNN
from emabank.study.posthoc import PosthocRecorder
from emabank.study.predict import Key, Logits, autocast_context, predict_each
from emabank.study.runs.rows import Part
from emabank.study.schedules import Schedule
from emabank.study.selection import LIVE, SelectedWeights, WeightSelector

if TYPE_CHECKING:
    from emabank.study.runs.writer import RunWriter

SWA = "swa"
WHITENED = 5000
"""The most training images used to whiten a network's first layer."""
BATCHNORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, SyncBatchNorm)

Set = tuple[str, BatchNorm]
"""The name of the weights, and which batch-norm statistics they have."""


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop, and has written a checkpoint. Not an `Exception`, because it has not failed."""


class Training:
    """The state of one run: model, optimizer, averages, metrics and kept weights.

    If several ranks train the run together, each holds the full state, and does its share of every batch, evaluation
    and recalibration. The results are those of a single process.
    """

    def __init__(
        self,
        config: RunConfig,
        parts: Parts,
        make_model: Callable[[], nn.Module],
        *,
        device: torch.device,
        group: ProcessGroup = ALONE,
    ) -> None:
        self.config, self.device, self.group = config, device, group
        self._recipe = config.recipe
        training, hardware = self._recipe.training, self._recipe.hardware
        torch.manual_seed(config.seed)
        form = torch.channels_last if hardware.channels_last else torch.contiguous_format
        self.model = self._to_device(make_model())
        if isinstance(self.model, WhitenedCNN):
            images = self._subset(parts.train, WHITENED)
            self.model.whiten(batches(images, normalisation=parts.normalisation))
        if not group.is_alone:
            self.model = convert_sync_batchnorm(self.model)
        shared = self._wrap_ddp(self.model)
        self._forward: Callable[[Tensor], Tensor] = torch.compile(shared) if hardware.compile else shared
        self.has_batchnorm = any(isinstance(module, BATCHNORM) for module in self.model.modules())
        self.loader = Loader(
            parts.train,
            size=training.batch,
            normalisation=parts.normalisation,
            crop=self._recipe.data.crop or 0,
            flip=bool(self._recipe.data.flip),
            seed=config.seed,
            device=device,
            memory_format=form,
            share=group.share,
        )
        self._parts = by_split(parts)

        def in_order(part: Images) -> Batches:
            return batches(
                part, normalisation=parts.normalisation, device=device, memory_format=form, share=group.share
            )

        self._plain = {split: in_order(part) for split, part in self._parts.items()}
        # Measured each epoch. Validation always uses all of its images, because they decide what is selected.
        count = self._recipe.measuring.curve_images
        self._curve_parts: dict[Part, Images] = {
            split: part if count is None or split == "val" else self._subset(part, count)
            for split, part in self._parts.items()
        }
        self.measured_parts = replace(parts, train=self._curve_parts["train"])
        """The images on which kept weights are measured; of the training images, the same subset as for curves."""
        self._curves = {
            split: self._plain[split] if part is self._parts[split] else in_order(part)
            for split, part in self._curve_parts.items()
        }
        self.schedule = Schedule(
            training.schedule,
            peak=config.rate,
            epochs=training.epochs,
            steps_per_epoch=len(self.loader),
            warmup_epochs=training.warmup_epochs or 0.0,
            milestones=tuple(share * training.epochs for share in training.milestones),
            factor=training.factor,
            constant_from=config.constant_from,
        )
        self.optimizer = torch.optim.SGD(
            self.model.parameters(),
            lr=config.rate,
            momentum=training.momentum,
            nesterov=training.momentum > 0,
            weight_decay=training.weight_decay or 0.0,
            fused=hardware.fused,
        )
        self._scaler = torch.amp.GradScaler(device.type, enabled=hardware.precision == "fp16")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".* has a half-life of")  # undersampled averages are part of the study
            self.bank = EMABank(
                shared,
                rules(self._recipe.averages, self.schedule.steps),
                every=self._recipe.averages.every,
                on_nonfinite="skip",
            )
        self.bank.attach(self.optimizer)  # a step that the loss scaler skips does not count
        self.recorder = PosthocRecorder(config, shared, self.optimizer, steps_per_epoch=len(self.loader))
        self.swa: EMABank | None = None
        noisy = parts.validation is not None and bool(parts.validation.wrong.any())
        self.selector = WeightSelector(self.bank, noisy=noisy)
        self.steps = 0
        self.diverged = False
        self.measured: list[EpochMetric] = []
        self.test_curves: list[EpochMetric] = []
        self.losses: list[float] = []
        self._last_agreement, self._next_agreement = (0, 0.0), 0
        # Summed on the device, and read once per epoch.
        self._loss = torch.zeros((), dtype=torch.float32 if device.type == "mps" else torch.float64, device=device)

    def _subset(self, part: Images, count: int) -> Images:
        """A stratified subset of a part, the same for every seed."""
        if count >= len(part):
            return part
        return part.take(stratified_subset(part.clean, count, seed=self._recipe.data.split_seed))

    def _to_device(self, model: nn.Module) -> nn.Module:
        """Move a network to the run's device and memory format. The format affects the last digits of results."""
        if self._recipe.hardware.channels_last:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return model.to(self.device)

    def _wrap_ddp(self, model: nn.Module) -> nn.Module:
        """The network, wrapped in DistributedDataParallel if several processes train it."""
        if self.group.is_alone:
            return model
        # Synchronised batch norms hold the same values on all ranks, so buffers need no broadcast.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated")  # torch 2.6 has nothing else
            return DistributedDataParallel(model, broadcast_buffers=False)

    def module(
        self, make_model: Callable[[], nn.Module], tensors: Mapping[str, Tensor], *, recompute: bool
    ) -> nn.Module:
        """A new network in eval mode with these weights and, if `recompute`, recomputed batch-norm statistics."""
        model = self._to_device(make_model())
        model.load_state_dict(tensors)
        model.eval()
        if recompute:
            recalibrate_batchnorm(self._wrap_ddp(model), self._plain["train"])
        return model

    # The loop ---------------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        return len(self.losses)

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left to train."""
        return self.diverged or self.epoch >= self._recipe.training.epochs

    def run(
        self,
        store: "RunWriter | None" = None,
        *,
        forks: Iterable[int] = (),
        checkpoint_seconds: float = 60.0,
        on_epoch: Callable[[int, str], None] = lambda epoch, words: None,
        observe: Callable[["Training"], None] = lambda training: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Train from the current state to the end.

        Checkpoints go to `store`; those after the epochs in `forks` are kept for good. After each epoch, `on_epoch`
        gets its number and a line of text, and `observe` gets this object. `should_stop` is called after every step,
        or about once per second if several ranks have to agree.
        """
        saved = time.monotonic()
        while not self.is_over:
            self.model.train()
            for inputs, labels in self.loader:
                self._step(inputs, labels)
                may_save, stop = self._agree(should_stop)
                if store is not None and may_save and (stop or time.monotonic() - saved >= checkpoint_seconds):
                    store.save_checkpoint(self.state_dict())
                    saved = time.monotonic()
                if stop:
                    raise Interrupted(f"asked to stop in epoch {self.epoch + 1}; the same command resumes from there")
            self._end_epoch()
            if store is not None and self.epoch in forks:
                store.save_fork(self.epoch, self.state_dict())
            on_epoch(self.epoch, self.status_line())
            observe(self)
        if store is not None:
            store.save_checkpoint(self.state_dict())

    def _step(self, inputs: Tensor, labels: Tensor) -> None:
        """One optimizer step on this process's share of a batch; nothing is read back from the device."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule.rate(self.steps)
        with autocast_context(self._recipe.hardware.precision, self.device):
            value = self._mean_loss(self._forward(inputs), labels)
        self._scaler.scale(value).backward()
        self._scaler.step(self.optimizer)
        self._scaler.update()
        self.optimizer.zero_grad()
        self.steps += 1
        training = self._recipe.training
        if training.bootstrap is not None and training.bootstrap_every and self.steps % training.bootstrap_every == 0:
            self.bank.flush()
            self.bank.copy_to(self.model, training.bootstrap, batchnorm="averaged")
        self.recorder.after_step(self.steps)
        if self.swa is not None:
            self.swa.update()
        # Undo the scaling of `_mean_loss`, so that this adds the sum over this process's share.
        self._loss += value.detach().to(self._loss.dtype) * self.loader.whole / self.group.world

    def _agree(self, should_stop: Callable[[], bool]) -> tuple[bool, bool]:
        """Whether a checkpoint may be written after this step, and whether to stop after it.

        Several ranks agree on this about once per second, after the same step, and move their losses to the first rank.
        """
        if self.group.is_alone:
            return True, should_stop()
        if self.steps < self._next_agreement:
            return False, False
        now = time.monotonic()
        step, then = self._last_agreement
        ahead = max(1, round((self.steps - step) / max(now - then, 1e-3))) if step else 1
        # Clocks differ, so the first rank decides after how many steps to ask again.
        stops, ahead, loss = self.group.totals(should_stop(), ahead * self.group.is_first, float(self._loss))
        self._loss.fill_(loss * self.group.is_first)
        self._last_agreement, self._next_agreement = (self.steps, now), self.steps + int(ahead)
        return True, stops > 0

    def _mean_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The mean loss of a batch; a share of it is scaled so that the mean over processes is that of the batch."""
        if self.group.is_alone:
            return F.cross_entropy(logits, labels)
        return F.cross_entropy(logits, labels, reduction="sum") * (self.group.world / self.loader.whole)

    def _end_epoch(self) -> None:
        (loss,) = self.group.totals(float(self._loss))
        self.losses.append(loss / len(self._parts["train"]))
        self._loss.zero_()
        self.diverged = not np.isfinite(self.losses[-1]) or self.bank.num_skipped > 0
        if not self.diverged:
            self._measure()
            self.diverged = not self._live_is_finite()
        if self.diverged:
            return
        if "val" in self._parts:
            self._choose()
        for keep in self.config.keep:
            if keep.epoch == self.epoch:
                self.selector.keep(keep.name, self._weights(keep.weights))
        # Not after the last epoch, so that the live weights kept are those that were measured.
        training = self._recipe.training
        if training.bootstrap is not None and training.bootstrap_every is None and not self.is_over:
            self.bank.copy_to(self.model, training.bootstrap, batchnorm="averaged")
        if self.config.swa and self.epoch == self.config.constant_from:
            self._begin_swa()

    def _begin_swa(self) -> None:
        self.swa = EMABank(self.bank.model, {SWA: Uniform()}, every=len(self.loader), on_nonfinite="skip")

    # Measuring and choosing -------------------------------------------------------------------------------------------

    def _measure(self) -> None:
        """Measure every set of weights on every requested split, with one pass per split."""
        asked = self._recipe.measuring
        sets = self._sets()
        if "val" in self._plain:
            self.measured += self._evaluate_split("val", sets)
        if asked.on_train and (self.epoch % asked.train_every == 0 or self.epoch == self._recipe.training.epochs):
            # Memorisation is a property of the weights, so skip their copies with recomputed statistics.
            self.measured += self._evaluate_split(
                "train", {key: weights for key, weights in sets.items() if key[1] != "recomputed"}
            )
        if asked.test_curves and self.config.trained_on == "100%":
            self.test_curves += self._evaluate_split("test", sets)

    def _sets(self) -> dict[Set, dict[str, Tensor] | None]:
        sets: dict[Set, dict[str, Tensor] | None] = {(LIVE, "own"): None}
        banks = [self.bank] if self.swa is None or not self.swa.num_updates else [self.bank, self.swa]
        sets |= {
            (name, "averaged"): bank.functional(name, batchnorm="averaged") for bank in banks for name in bank.names
        }
        if self.has_batchnorm and self._recipe.measuring.recompute == "each-epoch":
            for bank in banks:
                with local_statistics(self.model):
                    recalibrate_batchnorm(bank, self._curves["train"])
                sets |= {(name, "recomputed"): bank.functional(name, batchnorm="recomputed") for name in bank.names}
        return sets

    def _evaluate_split(self, split: Part, sets: dict[Set, dict[str, Tensor] | None]) -> list[EpochMetric]:
        part = self._curve_parts[split]
        return [
            EpochMetric(self.epoch, weights, batchnorm, split, metric, value)
            for (weights, batchnorm), logits in self._logits(self.model, sets, self._curves[split]).items()
            for metric, value in epoch_metrics(split, part, logits).items()
        ]

    def logits(self, model: nn.Module, sets: Mapping[Key, dict[str, Tensor] | None], split: Part) -> dict[Key, Logits]:
        """The logits of several sets of weights for all images of a split of `measured_parts`."""
        return self._logits(model, sets, self._curves[split] if split == "train" else self._plain[split])

    def _logits(
        self, model: nn.Module, sets: Mapping[Key, dict[str, Tensor] | None], share: Batches
    ) -> dict[Key, Logits]:
        """The logits on all processes, each of which computes a share of them."""
        precision = self._recipe.hardware.precision
        computed = predict_each(model, sets, share, precision=precision) if len(share) else dict[Key, Logits]()
        return {key: self.group.from_all(computed.get(key)) for key in sets}

    def _live_is_finite(self) -> bool:
        """Whether the live weights' metrics are finite; after the last epoch, some are measured if there are none."""
        values = [metric.value for metric in self.measured if metric.epoch == self.epoch and metric.weights == LIVE]
        if not values and self.is_over:
            values = [metric.value for metric in self._evaluate_split("train", {(LIVE, "own"): None})]
        return all(math.isfinite(value) for value in values)

    def _choose(self) -> None:
        """Pass this epoch's validation metrics to the selector, without SWA and without recomputed statistics."""
        metrics: dict[str, dict[str, float]] = {}
        for measured in self.measured:
            if measured.epoch == self.epoch and measured.split == "val" and measured.batchnorm != "recomputed":
                metrics.setdefault(measured.weights, {})[measured.metric] = measured.value
        metrics.pop(SWA, None)
        slowest = self._recipe.averages.names[-1]
        self.selector.observe(self.epoch, metrics, lambda: self._weights(slowest))

    def _weights(self, name: str) -> dict[str, Tensor]:
        bank = self.swa if name == SWA and self.swa is not None else self.bank
        return {key: tensor.cpu() for key, tensor in bank.weights(name, batchnorm="averaged").items()}

    def status_line(self) -> str:
        """A summary of the last epoch, for a progress display."""
        rate = f"rate {self.schedule.rate(max(0, self.steps - 1)):.3g}"
        if self.diverged:
            return f"{rate}, diverged"
        last = [metric for metric in self.measured or self.test_curves if metric.epoch == self.epoch]
        accuracies = [metric for metric in last if metric.metric == "accuracy" and metric.split != "train"]
        live = [metric.value for metric in accuracies if metric.weights == LIVE]
        others = [metric for metric in accuracies if metric.weights != LIVE]
        if not live or not others:
            return f"{rate}, loss {self.losses[-1]:.3f}"
        best = max(others, key=lambda metric: metric.value)
        return f"{rate}, live {100 * live[0]:.1f}%, {best.weights} {100 * best.value:.1f}%"

    # What is kept -----------------------------------------------------------------------------------------------------

    def kept(self) -> list[SelectedWeights]:
        """All weights that the finished run keeps, before their batch-norm statistics are recomputed."""
        last = self.epoch
        if self.diverged:
            return []
        kept = [
            SelectedWeights(Keep(weights=LIVE, epoch=last, batchnorm="own", selected_by="last"), self._weights(LIVE))
        ]
        if self.swa is not None and self.swa.num_updates:
            recomputed = "recomputed" if self.has_batchnorm else "averaged"
            keep = Keep(weights=SWA, epoch=last, batchnorm=recomputed, selected_by="last")
            kept.append(SelectedWeights(keep, self._weights(SWA)))
        kept += self.selector.kept(self.config.keep, self._recipe.averages, has_batchnorm=self.has_batchnorm)
        # Without batch norm, a criterion that chose the slowest average gives the same weights twice.
        return list({weights.keep.name: weights for weights in kept}.values())

    def history(self) -> list[dict[str, Any]]:
        """The learning rate and training loss of each epoch."""
        last_steps = [(epoch + 1) * len(self.loader) - 1 for epoch in range(self.epoch)]
        return [
            {"epoch": epoch + 1, "rate": self.schedule.rate(step), "training_loss": value}
            for epoch, (step, value) in enumerate(zip(last_steps, self.losses, strict=True))
        ]

    # State ------------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on; loads with `weights_only=True`."""
        random = {"cpu": torch.get_rng_state()}
        if self.device.type != "cpu":
            random[self.device.type] = torch.get_device_module(self.device).get_rng_state()
        return {
            "model": {key: tensor.detach().cpu().clone() for key, tensor in self.model.state_dict().items()},
            "optimizer": deepcopy(
                self.optimizer.state_dict()
            ),  # torch returns its own tensors here, and keeps those that it loads
            "scaler": self._scaler.state_dict(),
            "loader": self.loader.state_dict(),
            "bank": self.bank.state_dict(),
            "swa": None if self.swa is None else self.swa.state_dict(),
            "posthoc": self.recorder.state_dict(),
            **self.selector.state_dict(),
            "steps": self.steps,
            "diverged": self.diverged,
            "measured": [list(metric) for metric in self.measured],
            "test_curves": [list(metric) for metric in self.test_curves],
            "losses": list(self.losses),
            "loss": self._loss.cpu().clone(),
            "random": random,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a state, which may be a fork of another run."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(deepcopy(state["optimizer"]))
        self._scaler.load_state_dict(state["scaler"])
        self.loader.load_state_dict(state["loader"])
        self.bank.load_state_dict(state["bank"])
        self.recorder.load_state_dict(state.get("posthoc"))  # missing in older checkpoints
        self.selector.load_state_dict(state)
        self.steps, self.diverged = state["steps"], state["diverged"]
        self.measured = [EpochMetric(*values) for values in state["measured"]]
        self.test_curves = [EpochMetric(*values) for values in state["test_curves"]]
        self.losses = list(state["losses"])
        self._loss.copy_(state["loss"] * self.group.is_first)  # which holds the sum of all ranks
        begun = self.config.swa and self.epoch >= (self.config.constant_from or 0)
        if begun:
            self._begin_swa()
            if self.swa is not None and state["swa"] is not None:
                self.swa.load_state_dict(state["swa"])
        torch.set_rng_state(state["random"]["cpu"])
        if self.device.type in state["random"] and self.device.type != "cpu":
            torch.get_device_module(self.device).set_rng_state(state["random"][self.device.type])
