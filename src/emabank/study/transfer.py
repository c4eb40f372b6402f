"""Linear evaluation: how well a linear head learns another task from a trained network's frozen features.

The features are computed once (predict.features_of); the head is trained on them alone, by hand-written gradients.
"""

import math
from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from emabank.study.data.images import Dataset, Normalisation
from emabank.study.data.loader import batches, evaluation_batch
from emabank.study.metrics.classification import accuracy
from emabank.study.predict import features_of


def evaluate_transfer(
    model: nn.Module, target: Dataset, *, normalisation: Normalisation, seed: int, threads: int | None = None
) -> "Transferred":
    """Train a linear head on the frozen features of a target's training images, and test it on its test images.

    The images are scaled as the network's own training images were.

    >>> from emabank.study.data.digits import digits_dataset
    >>> from emabank.study.data.images import normalisation_of
    >>> class Pixels(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.head = nn.Linear(64, 10)
    ...     def features(self, x):
    ...         return x.flatten(1)
    >>> digits = digits_dataset()
    >>> result = evaluate_transfer(Pixels(), digits, normalisation=normalisation_of(digits.train), seed=0)
    >>> result.logits.shape, result.accuracy > 0.85
    ((500, 10), True)
    """
    device = next(model.parameters()).device
    tensors: list[Tensor] = []
    for part in (target.train, target.test):
        images = batches(part, size=evaluation_batch(part), normalisation=normalisation, device=device)
        tensors += [features_of(model, images).cpu(), part.clean]
    return linear_evaluation(*tensors, classes=target.classes, seed=seed, threads=threads)


class Transferred(NamedTuple):
    """What the trained head makes of the test features."""

    accuracy: float
    logits: NDArray[np.float32]
    """`[test samples, classes]`"""


def linear_evaluation(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    test_labels: Tensor,
    *,
    classes: int,
    epochs: int = 50,
    batch: int = 128,
    rate: float = 0.01,
    momentum: float = 0.9,
    seed: int = 0,
    threads: int | None = None,
) -> Transferred:
    """Train a linear head on the features and let it predict the test features.

    SGD with Nesterov momentum; the rate falls as a cosine from `rate` to 0, step by step; no weight decay, no warm-up,
    no average. The features are taken as they are, without standardising them.

    Args:
        train_features: `[samples, width]`, as `features_of` gives them; likewise `test_features`.
        train_labels: `[samples]`, whole numbers from 0 to `classes` - 1; likewise `test_labels`.
        classes: how many classes the head tells apart.
        epochs: how often it sees every training sample.
        batch: how many samples a step takes; the last step of an epoch takes what is left.
        rate: the learning rate of the first step.
        momentum: from 0 up to, not including, 1.
        seed: of the head's first weights and of the order of the samples; the same seed gives the same head.
        threads: CPU threads to use meanwhile; None leaves their number as it is.

    >>> features = torch.eye(2).repeat(50, 1)
    >>> labels = torch.arange(2).repeat(50)
    >>> linear_evaluation(features, labels, features, labels, classes=2).accuracy
    1.0
    """
    _check_settings(classes=classes, epochs=epochs, batch=batch, rate=rate, momentum=momentum, threads=threads)
    _check_part("train", train_features, train_labels, classes)
    _check_part("test", test_features, test_labels, classes)
    if train_features.shape[1] != test_features.shape[1]:
        raise ValueError(
            f"train features are {train_features.shape[1]} wide and test features {test_features.shape[1]}; "
            "give features of one model"
        )
    with torch.no_grad(), _with_threads(threads):
        features = train_features.detach().float()
        head = _Head(features.shape[1], classes, device=features.device, momentum=momentum, seed=seed)
        head.train(features, train_labels.to(features.device, torch.int64), epochs=epochs, batch=batch, rate=rate)
        logits = head.logits(test_features.detach().to(features.device, torch.float32)).cpu().numpy()
    return Transferred(accuracy(logits, test_labels.cpu().numpy()), logits)


class _Head:
    """A linear layer that begins as `nn.Linear` does, and its momentum."""

    def __init__(self, width: int, classes: int, *, device: torch.device, momentum: float, seed: int):
        self.generator = torch.Generator().manual_seed(seed)  # on the CPU, so that every device begins alike
        bound = 1 / math.sqrt(width)
        shapes = ((classes, width), (classes,))
        first = [torch.empty(shape).uniform_(-bound, bound, generator=self.generator) for shape in shapes]
        self.weight, self.bias = (values.to(device) for values in first)
        self.momentum = momentum
        self.weight_speed, self.bias_speed = torch.zeros_like(self.weight), torch.zeros_like(self.bias)

    def logits(self, features: Tensor) -> Tensor:
        return F.linear(features, self.weight, self.bias)

    def train(self, features: Tensor, labels: Tensor, *, epochs: int, batch: int, rate: float) -> None:
        steps = epochs * math.ceil(len(labels) / batch)
        step = 0
        for _ in range(epochs):
            order = torch.randperm(len(labels), generator=self.generator).to(labels.device)
            for chosen in order.split(batch):
                cosine = (1 + math.cos(math.pi * step / steps)) / 2
                # index_select gathers rows five times as fast as features[chosen] on a CPU
                self._step(features.index_select(0, chosen), labels[chosen], rate * cosine)
                step += 1

    def _step(self, features: Tensor, labels: Tensor, rate: float) -> None:
        # The slope of the mean cross entropy by the logits: probabilities minus 1 at the label.
        slope = self.logits(features).softmax(dim=1)
        slope[torch.arange(len(labels), device=labels.device), labels] -= 1
        slope /= len(labels)
        self._move(self.weight, self.weight_speed, slope.T @ features, rate)
        self._move(self.bias, self.bias_speed, slope.sum(dim=0), rate)

    def _move(self, values: Tensor, speed: Tensor, gradient: Tensor, rate: float) -> None:
        """Nesterov momentum as torch.optim.SGD has it."""
        speed.mul_(self.momentum).add_(gradient)
        values.sub_(gradient.add_(speed, alpha=self.momentum), alpha=rate)


@contextmanager
def _with_threads(threads: int | None) -> Generator[None]:
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        if threads is not None:
            torch.set_num_threads(before)


def _check_settings(
    *, classes: int, epochs: int, batch: int, rate: float, momentum: float, threads: int | None
) -> None:
    counts = {"classes": classes, "epochs": epochs, "batch": batch, "threads": 1 if threads is None else threads}
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} is {count}; give 1 or more")
    if not 0 < rate < math.inf:
        raise ValueError(f"rate is {rate}; give a finite number above 0")
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum is {momentum}; give a number from 0 up to, not including, 1")


def _check_part(part: str, features: Tensor, labels: Tensor, classes: int) -> None:
    if features.ndim != 2 or not features.numel():
        raise ValueError(f"{part} features have the shape {tuple(features.shape)}; give [samples, width], not empty")
    if labels.shape != features.shape[:1] or labels.is_floating_point() or labels.dtype == torch.bool:
        raise ValueError(
            f"{part} labels are {labels.dtype} of the shape {tuple(labels.shape)}; "
            f"give one whole number for each of the {len(features)} samples"
        )
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise ValueError(f"{part} labels go from {low} to {high}; with {classes} classes give 0 to {classes - 1}")
    if not features.isfinite().all():
        raise ValueError(f"{part} features hold NaN or infinity; look at the weights and inputs that made them")
