"""VGG networks without batch norm (Simonyan & Zisserman 2015): 3x3 convolutions in stages, each ending in max-pooling.

VGG-16 is the SWA authors' version for CIFAR (Izmailov et al. 2018); VGG-small is ours, for a CPU.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal

from torch import Tensor, nn

from emabank.study.models.resnet import Network, initialise_convolutions


class VGG(Network):
    """Stages of convolutions, mean pooling to one pixel, hidden linear layers after dropout, and a linear head."""

    def __init__(
        self,
        *,
        stages: Sequence[Sequence[int]],
        hidden: Sequence[int],
        initial: Literal["fan_in", "fan_out"],
        classes: int,
        channels: int,
    ):
        super().__init__()
        self.smallest_side = 2 ** len(stages)
        self.stages = nn.Sequential(*_stages(channels, stages))
        widths = [stages[-1][-1], *hidden]
        self.hidden = nn.Sequential(*_hidden(widths))
        self.head = nn.Linear(widths[-1], classes)
        initialise_convolutions(self, mode=initial)

    def features(self, x: Tensor) -> Tensor:
        # Includes the hidden layers and the dropout before each: a fixed function of the image only in eval mode.
        if min(x.shape[2:]) < self.smallest_side:
            raise ValueError(
                f"images are {x.shape[2]} x {x.shape[3]} pixels; this VGG halves them {len(self.stages)} times "
                f"and takes {self.smallest_side} x {self.smallest_side} or more, so take a smaller network"
            )
        # Five stages reduce 32 x 32 pixels to one; larger images leave more, which are averaged.
        return self.hidden(self.stages(x).mean(dim=(2, 3)))


def vgg16(*, classes: int, channels: int = 3) -> VGG:
    """VGG-16 of the SWA authors: dropout before each of two hidden layers of 512, no batch norm.

    Identical to theirs on 32 x 32 pixels. On larger images, mean pooling, which they do not have, keeps the number of
    parameters the same.
    """
    stages = ((64,) * 2, (128,) * 2, (256,) * 3, (512,) * 3, (512,) * 3)
    return VGG(stages=stages, hidden=(512, 512), initial="fan_out", classes=classes, channels=channels)


def vgg_small(*, classes: int, channels: int = 3, width: int = 16) -> VGG:
    """Six convolutions with 1, 2 and 4 times `width` channels, for images of 8 x 8 pixels or more.

    It has neither dropout nor hidden layers, so that it can memorise. Its initialisation is "fan_in": the published
    "fan_out" would shrink one grey channel to a quarter on the way to 16, and no batch norm would make up for that.
    """
    stages = ((width,) * 2, (2 * width,) * 2, (4 * width,) * 2)
    return VGG(stages=stages, hidden=(), initial="fan_in", classes=classes, channels=channels)


def _stages(channels: int, stages: Sequence[Sequence[int]]) -> Iterator[nn.Sequential]:
    incoming = channels
    for widths in stages:
        layers: list[nn.Module] = []
        for outgoing in widths:
            layers += [nn.Conv2d(incoming, outgoing, 3, padding=1), nn.ReLU()]
            incoming = outgoing
        yield nn.Sequential(*layers, nn.MaxPool2d(2))


def _hidden(widths: Sequence[int]) -> Iterator[nn.Module]:
    for incoming, outgoing in pairwise(widths):
        yield from (nn.Dropout(0.5), nn.Linear(incoming, outgoing), nn.ReLU())
