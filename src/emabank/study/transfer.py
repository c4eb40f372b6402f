"""Linear evaluation: how well a linear head learns another task from a trained network's frozen features.

The features are computed once (predict.features_of); the head is trained on them alone, by hand-written gradients.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from emabank.study.data.images import Dataset, Normalisation
from emabank.study.data.loader import batches
from emabank.study.metrics import accuracy
from emabank.study.predict import features_of

EPOCHS, BATCH, RATE, MOMENTUM = 50, 128, 0.01, 0.9


def evaluate_transfer(model: nn.Module, target: Dataset, *, normalisation: Normalisation, seed: int) -> float:
    """Train a linear head on the frozen features of a target's training images; its accuracy on the test images.

    The images are scaled as the network's own training images were.
    """
    device = next(model.parameters()).device
    features: list[Tensor] = []
    for part in (target.train, target.test):
        images = batches(part, normalisation=normalisation, device=device)
        features.append(features_of(model, images).cpu())
    logits = linear_evaluation(features[0], target.train.clean, features[1], classes=target.classes, seed=seed)
    return accuracy(logits, target.test.clean.numpy())


def linear_evaluation(
    features: Tensor, labels: Tensor, test_features: Tensor, *, classes: int, seed: int
) -> NDArray[np.float32]:
    """The logits, for test features `[samples, width]`, of a linear head trained on other features.

    SGD with Nesterov momentum; the rate falls as a cosine to 0, step by step; no weight decay, no warm-up, no average.
    The features are not standardised.
    """
    for part in (features, test_features):
        if not part.isfinite().all():
            raise ValueError("features must be finite; got NaN or infinity. Look at the weights that made them")
    width, generator = features.shape[1], torch.Generator().manual_seed(seed)
    bound = 1 / math.sqrt(width)  # initialised like `nn.Linear`
    weight, bias = (
        torch.empty(shape).uniform_(-bound, bound, generator=generator) for shape in ((classes, width), (classes,))
    )
    momenta = torch.zeros_like(weight), torch.zeros_like(bias)
    step, steps = 0, EPOCHS * math.ceil(len(labels) / BATCH)
    with torch.no_grad():
        for _ in range(EPOCHS):
            for chosen in torch.randperm(len(labels), generator=generator).split(BATCH):
                rate = RATE * ((1 + math.cos(math.pi * step / steps)) / 2)
                # index_select gathers rows five times as fast as features[chosen] on a CPU
                inputs = features.index_select(0, chosen)
                # The gradient of the mean cross entropy in the logits: the probabilities, minus 1 at the label.
                slope = F.linear(inputs, weight, bias).softmax(dim=1)
                slope[torch.arange(len(chosen)), labels[chosen]] -= 1
                slope /= len(chosen)
                gradients = slope.T @ inputs, slope.sum(dim=0)
                for values, momentum, gradient in zip((weight, bias), momenta, gradients, strict=True):
                    # Nesterov momentum as torch.optim.SGD has it
                    momentum.mul_(MOMENTUM).add_(gradient)
                    values.sub_(gradient.add_(momentum, alpha=MOMENTUM), alpha=rate)
                step += 1
        return F.linear(test_features, weight, bias).numpy()
