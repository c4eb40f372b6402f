"""A plain CNN that pools early and is wide at low resolution, after a fixed whitening layer (Jordan 2024, airbench).

Nearly all of its arithmetic is in wide convolutions on small maps, which a CPU does fastest.
"""

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from emabank.study.models.resnet import Network, initialise_convolutions

EPSILON = 5e-4
"""Added to every variance before taking its inverse root, so that a direction without variance does not blow up."""


class WhitenedCNN(Network):
    """Whitening of 2x2 patches, three groups of two convolutions, max-pooling to one pixel, and a linear head.

    The filters of the first layer are a buffer: they are part of the state dict, and nothing trains or decays them.
    They are random until `whiten` sets them.
    """

    whitening: Tensor

    def __init__(self, *, classes: int, channels: int, width: int):
        super().__init__()
        filters = 2 * 4 * channels
        self.register_buffer("whitening", nn.init.kaiming_normal_(torch.empty(filters, channels, 2, 2)))
        widths = (width, 4 * width, 4 * width)
        self.groups = nn.Sequential(
            *(_Group(*pair) for pair in zip((filters, *widths[:-1]), widths, strict=True)),
        )
        self.head = nn.Linear(widths[-1], classes)
        initialise_convolutions(self)

    def whiten(self, batches: Iterable[tuple[Tensor, Any]]) -> None:
        """Set the first layer to the whitening of these images, as the network will see them."""
        self.whitening.copy_(whitening_filters(batches))

    def features(self, x: Tensor) -> Tensor:
        if min(x.shape[2:]) < 2:
            raise ValueError(f"images are {x.shape[2]} x {x.shape[3]} pixels; this network takes 2 x 2 or more")
        return self.groups(F.relu(F.conv2d(x, self.whitening))).amax(dim=(2, 3))


def whitened_cnn(*, classes: int, channels: int = 3, width: int = 32) -> WhitenedCNN:
    """Groups with 1, 4 and 4 times `width` channels, for images of 2 x 2 pixels or more."""
    return WhitenedCNN(classes=classes, channels=channels, width=width)


def whitening_filters(batches: Iterable[tuple[Tensor, Any]]) -> Tensor:
    """Filters `[8 * channels, channels, 2, 2]`; on 2x2 patches, the outputs of the first half have unit covariance.

    The first half are the principal directions of the patches, each divided by the root of its variance plus `EPSILON`.
    The second half are their negatives, for what a ReLU cuts off. Computed in float64 on the CPU.
    """
    count, total, products, channels = 0, torch.zeros(()), torch.zeros(()), 0
    for images, _ in batches:
        channels = images.shape[1]
        patches = F.unfold(images.cpu().double(), 2).transpose(0, 1).flatten(1)
        count, total, products = count + patches.shape[1], total + patches.sum(dim=1), products + patches @ patches.T
    mean = total / count
    variances, directions = torch.linalg.eigh(products / count - mean.outer(mean))
    # The sign of a direction is arbitrary: make its largest component positive, so that all machines agree.
    directions = directions * directions.gather(0, directions.abs().argmax(dim=0, keepdim=True)).sign()
    filters = (directions / (variances.clamp(min=0) + EPSILON).sqrt()).T.reshape(-1, channels, 2, 2)
    return torch.cat([filters, -filters])


class _Group(nn.Module):
    """Two 3x3 convolutions with batch norm; the map is halved after the first, unless one pixel is left."""

    def __init__(self, incoming: int, outgoing: int):
        super().__init__()
        self.first = nn.Conv2d(incoming, outgoing, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(outgoing)
        self.second = nn.Conv2d(outgoing, outgoing, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(outgoing)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if min(x.shape[2:]) > 1:
            x = F.max_pool2d(x, 2)
        return F.relu(self.second_norm(self.second(F.relu(self.first_norm(x)))))
