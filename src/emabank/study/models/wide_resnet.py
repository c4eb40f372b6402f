"""Wide residual networks for small images (Zagoruyko & Komodakis 2016, "Wide residual networks").

Basic blocks in pre-activation order: batch norm and ReLU stand before each convolution, and once more before pooling.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from emabank.study.models.resnet import initialise_convolutions

STEM = 16


class WideResNet(nn.Module):
    """A stem, three stages of (depth - 4) / 6 blocks, batch norm, ReLU, mean pooling and a linear head."""

    def __init__(self, *, depth: int, widen: int, classes: int, channels: int):
        super().__init__()
        widths = [STEM, *(STEM * widen * factor for factor in (1, 2, 4))]
        self.stem = nn.Conv2d(channels, STEM, 3, padding=1, bias=False)
        self.stages = nn.Sequential(
            *(
                _stage(incoming, outgoing, count=(depth - 4) // 6, stride=stride)
                for incoming, outgoing, stride in zip(widths[:-1], widths[1:], (1, 2, 2), strict=True)
            )
        )
        self.norm = nn.BatchNorm2d(widths[-1])
        self.head = nn.Linear(widths[-1], classes)
        initialise_convolutions(self)

    def features(self, x: Tensor) -> Tensor:
        """What the last layer sees: `[n, channels, height, width]` becomes `[n, width of the last stage]`."""
        return F.relu(self.norm(self.stages(self.stem(x)))).mean(dim=(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        """Logits `[n, classes]`."""
        return self.head(self.features(x))


def wide_resnet(*, classes: int, channels: int = 3, depth: int = 28, widen: int = 10) -> WideResNet:
    """WideResNet-28-10, by default: 36.5 million parameters, as its authors report.

    Args:
        classes: how many logits.
        channels: of the images.
        depth: 6n + 4 for n blocks a stage; so many convolutions there are, those of the shortcuts included.
        widen: how many times wider than 16, 32 and 64 channels the three stages are.
    """
    return WideResNet(depth=depth, widen=widen, classes=classes, channels=channels)


class _Block(nn.Module):
    def __init__(self, incoming: int, outgoing: int, *, stride: int):
        super().__init__()
        self.first_norm = nn.BatchNorm2d(incoming)
        self.first = nn.Conv2d(incoming, outgoing, 3, stride=stride, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(outgoing)
        self.second = nn.Conv2d(outgoing, outgoing, 3, padding=1, bias=False)
        same_shape = stride == 1 and incoming == outgoing
        self.shortcut = None if same_shape else nn.Conv2d(incoming, outgoing, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        activated = F.relu(self.first_norm(x))
        # As in the authors' code: a projection sees the activated input, the identity passes the input on untouched.
        passed = x if self.shortcut is None else self.shortcut(activated)
        return self.second(F.relu(self.second_norm(self.first(activated)))) + passed


def _stage(incoming: int, outgoing: int, *, count: int, stride: int) -> nn.Sequential:
    first = _Block(incoming, outgoing, stride=stride)
    return nn.Sequential(first, *(_Block(outgoing, outgoing, stride=1) for _ in range(count - 1)))
