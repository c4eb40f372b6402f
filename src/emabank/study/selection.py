"""What a run selects on validation images, and the weights that it keeps."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from emabank import BestTracker, EMABank
from emabank.advice import Direction
from emabank.study.averages import CRITERIA, NOISY_CRITERIA, columns
from emabank.study.config import AveragesConfig, Keep

LIVE = "live"
NOISY_LIVE = "noisy-live"
"""The live weights at the epoch that noisy validation labels chose."""
_SELECTED_LIVE = {"accuracy": LIVE, "loss": "live-loss", "noisy-accuracy": NOISY_LIVE}
"""The criteria that select live weights, and the names of these in the summary of a run."""

Weights = dict[str, Tensor]


class SelectedWeights(NamedTuple):
    """Weights that a run keeps, as a state dict of the model."""

    keep: Keep
    tensors: Weights


class WeightSelector:
    """Tracks the best average and the best live weights, and holds other weights to keep, by name.

    With `noisy`, it also selects by the noisy validation labels.
    """

    def __init__(self, bank: EMABank, *, noisy: bool = False) -> None:
        criteria = (*CRITERIA, *NOISY_CRITERIA) if noisy else tuple(CRITERIA)
        directions: dict[str, Direction] = {name: "min" if name.endswith("loss") else "max" for name in criteria}
        self.averages = BestTracker(bank, directions)
        self.live = BestTracker(bank, {name: directions[name] for name in criteria if name in _SELECTED_LIVE})
        self._kept: dict[str, Weights] = {}

    def keep(self, name: str, weights: Weights) -> None:
        """Keep weights, replacing any of the same name."""
        self._kept[name] = weights

    def observe(self, epoch: int, metrics: Mapping[str, Mapping[str, float]], slowest: Callable[[], Weights]) -> None:
        """Record the metrics of the live weights and of every average after an epoch.

        `slowest` returns the weights of the slowest average, which are kept if this epoch is the best so far.
        """
        # A criterion has the name of its metric, but with a dash, because it is part of file names.
        values = {name: {metric.replace("_", "-"): v for metric, v in own.items()} for name, own in metrics.items()}
        self.live.observe(epoch, {LIVE: values.pop(LIVE)})
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".* are equal so far")  # as the paper's are during warm-up
            self.averages.observe(epoch, values, batchnorm="averaged")
        for criterion in CRITERIA:
            try:
                best = self.averages.best(criterion)
            except LookupError:  # no metric was finite so far
                continue
            if best.epoch == epoch:
                self._kept[f"slowest-{criterion}"] = slowest()

    def selected(self) -> dict[str, dict[str, Any]]:
        """What validation selected: per criterion the average and the epoch, and for the live weights the epoch."""
        try:
            live = [self.live.best(criterion) for criterion in self.live.criteria]
            averages = [self.averages.best(criterion) for criterion in self.averages.criteria]
        except LookupError:  # no metric was finite so far
            return {}
        return {
            **{_SELECTED_LIVE[best.criterion]: {"epoch": best.epoch, "value": best.value} for best in live},
            **{b.criterion: {"average": b.average, "epoch": b.epoch, "value": b.value} for b in averages},
        }

    def kept(self, asked: Sequence[Keep], averages: AveragesConfig, *, has_batchnorm: bool) -> list[SelectedWeights]:
        """The weights in `asked`, and those that validation selected."""
        kept = [SelectedWeights(keep, self._kept[keep.name]) for keep in asked]
        selected = self.selected()
        if not selected:
            return kept
        for criterion in self.live.criteria:
            epoch = selected[_SELECTED_LIVE[criterion]]["epoch"]
            keep = Keep(weights=LIVE, epoch=epoch, batchnorm="own", selected_by=criterion)  # type: ignore[arg-type]
            kept.append(SelectedWeights(keep, dict(self.live.weights(criterion))))
        for criterion in self.averages.criteria:
            best = selected[criterion]
            for keep in columns(averages, best["average"], best["epoch"], criterion, has_batchnorm):
                own = keep.weights == best["average"] and keep.batchnorm == "averaged"
                tensors = self.averages.weights(criterion) if own else self._kept[f"slowest-{criterion}"]
                kept.append(SelectedWeights(keep, dict(tensors)))
        return kept

    def state_dict(self) -> dict[str, Any]:
        """What is selected and kept so far; loads with `weights_only=True`."""
        return {"averages": self.averages.state_dict(), "live": self.live.state_dict(), "kept": dict(self._kept)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.averages.load_state_dict(state["averages"])
        self.live.load_state_dict(state["live"])
        self._kept = dict(state["kept"])
