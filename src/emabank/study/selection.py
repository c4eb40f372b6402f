"""What a run selects on validation images, and the weights it keeps for the end."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from emabank import Best, BestTracker, EMABank
from emabank.study.averages import columns
from emabank.study.config import AveragesConfig, Keep

LIVE = "live"

Weights = dict[str, Tensor]


class SelectedWeights(NamedTuple):
    """Weights that a run keeps, as a state dict of the model."""

    keep: Keep
    tensors: Weights


class WeightSelector:
    """Trackers of the best average and of the best live weights, and what was kept beside them, by name."""

    def __init__(self, bank: EMABank) -> None:
        self.averages = BestTracker(bank)
        self.live = BestTracker(bank, {"accuracy": "max"})
        self._kept: dict[str, Weights] = {}

    def keep(self, name: str, weights: Weights) -> None:
        """Keep weights, in the place of those of the same name."""
        self._kept[name] = weights

    def observe(self, epoch: int, metrics: Mapping[str, Mapping[str, float]], slowest: Callable[[], Weights]) -> None:
        """Take in the metrics of the live weights and of every average after an epoch; `slowest` gives the weights of
        the slowest average, which are kept whenever an epoch is the best so far.
        """
        self.live.observe(epoch, {LIVE: metrics[LIVE]})
        averages = {name: values for name, values in metrics.items() if name != LIVE}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".* are equal so far")  # the paper's are, while they warm up
            self.averages.observe(epoch, averages, batchnorm="averaged")
        for criterion in ("accuracy", "loss"):
            best = _best(self.averages, criterion)
            if best is not None and best.epoch == epoch:
                self._kept[f"slowest-{criterion}"] = slowest()

    def selected(self) -> dict[str, dict[str, Any]]:
        """What validation selected: per criterion the average and the epoch, and for the live weights the epoch."""
        live = _best(self.live, "accuracy")
        by_accuracy, by_loss = (_best(self.averages, criterion) for criterion in ("accuracy", "loss"))
        if live is None or by_accuracy is None or by_loss is None:
            return {}
        return {
            LIVE: {"epoch": live.epoch, "value": live.value},
            **{b.criterion: {"average": b.average, "epoch": b.epoch, "value": b.value} for b in (by_accuracy, by_loss)},
        }

    def kept(self, asked: Sequence[Keep], averages: AveragesConfig, *, has_batchnorm: bool) -> list[SelectedWeights]:
        """What was asked for by name, and what validation selected."""
        kept = [SelectedWeights(keep, self._kept[keep.name]) for keep in asked]
        selected = self.selected()
        if not selected:
            return kept
        live = Keep(weights=LIVE, epoch=selected[LIVE]["epoch"], batchnorm="own", selected_by="accuracy")
        kept.append(SelectedWeights(live, dict(self.live.weights("accuracy"))))
        for criterion in ("accuracy", "loss"):
            best = selected[criterion]
            for keep in columns(averages, best["average"], best["epoch"], criterion, has_batchnorm):
                own = keep.weights == best["average"] and keep.batchnorm == "averaged"
                tensors = self.averages.weights(criterion) if own else self._kept[f"slowest-{criterion}"]
                kept.append(SelectedWeights(keep, dict(tensors)))
        return kept

    def state_dict(self) -> dict[str, Any]:
        """All of it; loads with `weights_only=True`."""
        return {"averages": self.averages.state_dict(), "live": self.live.state_dict(), "kept": dict(self._kept)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state."""
        self.averages.load_state_dict(state["averages"])
        self.live.load_state_dict(state["live"])
        self._kept = dict(state["kept"])


def _best(tracker: BestTracker, criterion: str) -> Best | None:
    try:
        return tracker.best(criterion)
    except LookupError:  # nothing was finite so far
        return None
