"""Residual networks for small images (He et al. 2016, "Deep residual learning for image recognition"), and wide ones.

ResNet-8 and -20 are the paper's CIFAR family: three stages, shortcuts without parameters. ResNet-18 and -34 are its
ImageNet family with the stem that small images need: one 3x3 convolution of stride 1 and no max-pooling.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

Shortcut = Callable[[int, int, int], nn.Module]


class Network(nn.Module):
    """A network that returns logits `[n, classes]`: a linear head on its features."""

    head: nn.Linear

    def features(self, x: Tensor) -> Tensor:
        """The input of the last layer: `[n, channels, height, width]` becomes `[n, width]`."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


class ResNet(Network):
    """A stem, stages of basic blocks (each after the first at half the size), mean pooling and a linear head."""

    def __init__(
        self, *, blocks: Sequence[int], widths: Sequence[int], shortcut: Shortcut, classes: int, channels: int
    ):
        super().__init__()
        self.stem = _conv_norm(channels, widths[0], stride=1)
        incoming = [widths[0], *widths]
        self.stages = nn.Sequential(
            *(
                _stage(incoming[i], width, count=count, stride=1 if i == 0 else 2, shortcut=shortcut)
                for i, (width, count) in enumerate(zip(widths, blocks, strict=True))
            )
        )
        self.head = nn.Linear(widths[-1], classes)
        initialise_convolutions(self)

    def features(self, x: Tensor) -> Tensor:
        return self.stages(F.relu(self.stem(x))).mean(dim=(2, 3))


def resnet8(*, classes: int, channels: int = 3, width: int = 16) -> ResNet:
    """The smallest of the CIFAR family: one block per stage, with 1, 2 and 4 times `width` channels."""
    return _cifar_family(1, classes=classes, channels=channels, width=width)


def resnet20(*, classes: int, channels: int = 3, width: int = 16) -> ResNet:
    """The CIFAR family with three blocks per stage; 0.27 million parameters, as He et al. report."""
    return _cifar_family(3, classes=classes, channels=channels, width=width)


def resnet18(*, classes: int, channels: int = 3) -> ResNet:
    """ResNet-18 with the stem for small images."""
    return _imagenet_family((2, 2, 2, 2), classes=classes, channels=channels)


def resnet34(*, classes: int, channels: int = 3) -> ResNet:
    """ResNet-34 with the stem for small images."""
    return _imagenet_family((3, 4, 6, 3), classes=classes, channels=channels)


def initialise_convolutions(network: nn.Module, *, mode: Literal["fan_in", "fan_out"] = "fan_out") -> None:
    """Initialise the convolutions of any network from He's normal distribution, and their biases, if any, with 0.

    With "fan_out" the standard deviation is sqrt(2 / (k * k * outgoing)), as in the published code of all these
    families; "fan_in" counts the incoming channels, which keeps the size of the activations.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode=mode, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def _cifar_family(blocks: int, *, classes: int, channels: int, width: int) -> ResNet:
    widths = (width, 2 * width, 4 * width)
    return ResNet(blocks=(blocks,) * 3, widths=widths, shortcut=_PaddedShortcut, classes=classes, channels=channels)


def _imagenet_family(blocks: Sequence[int], *, classes: int, channels: int) -> ResNet:
    widths = (64, 128, 256, 512)
    return ResNet(blocks=blocks, widths=widths, shortcut=_projection, classes=classes, channels=channels)


class _BasicBlock(nn.Module):
    def __init__(self, incoming: int, outgoing: int, *, stride: int, shortcut: Shortcut):
        super().__init__()
        self.first = _conv_norm(incoming, outgoing, stride=stride)
        self.second = _conv_norm(outgoing, outgoing, stride=1)
        same_shape = stride == 1 and incoming == outgoing
        self.shortcut = nn.Identity() if same_shape else shortcut(incoming, outgoing, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(F.relu(self.first(x))) + self.shortcut(x))


class _PaddedShortcut(nn.Module):
    """Option A of He et al.: every `stride`-th pixel, and zeros for the new channels; no parameters."""

    def __init__(self, incoming: int, outgoing: int, stride: int):
        super().__init__()
        self.stride = stride
        self.new_channels = outgoing - incoming

    def forward(self, x: Tensor) -> Tensor:
        before = self.new_channels // 2
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, before, self.new_channels - before))


def _projection(incoming: int, outgoing: int, stride: int) -> nn.Module:
    """Option B of He et al.: a 1x1 convolution with batch norm."""
    return nn.Sequential(nn.Conv2d(incoming, outgoing, 1, stride=stride, bias=False), nn.BatchNorm2d(outgoing))


def _stage(incoming: int, outgoing: int, *, count: int, stride: int, shortcut: Shortcut) -> nn.Sequential:
    first = _BasicBlock(incoming, outgoing, stride=stride, shortcut=shortcut)
    rest = [_BasicBlock(outgoing, outgoing, stride=1, shortcut=shortcut) for _ in range(count - 1)]
    return nn.Sequential(first, *rest)


def _conv_norm(incoming: int, outgoing: int, *, stride: int) -> nn.Sequential:
    conv = nn.Conv2d(incoming, outgoing, 3, stride=stride, padding=1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outgoing))


# Wide residual networks (Zagoruyko & Komodakis 2016) ------------------------------------------------------------------
#
# Basic blocks in pre-activation order: batch norm and ReLU come before each convolution, and once more before pooling.

STEM = 16


class WideResNet(Network):
    """A stem, three stages of (depth - 4) / 6 blocks, batch norm, ReLU, mean pooling and a linear head."""

    def __init__(self, *, depth: int, widen: int, classes: int, channels: int):
        super().__init__()
        widths = [STEM, *(STEM * widen * factor for factor in (1, 2, 4))]
        self.stem = nn.Conv2d(channels, STEM, 3, padding=1, bias=False)
        self.stages = nn.Sequential(
            *(
                _wide_stage(incoming, outgoing, count=(depth - 4) // 6, stride=stride)
                for incoming, outgoing, stride in zip(widths[:-1], widths[1:], (1, 2, 2), strict=True)
            )
        )
        self.norm = nn.BatchNorm2d(widths[-1])
        self.head = nn.Linear(widths[-1], classes)
        initialise_convolutions(self)

    def features(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.stages(self.stem(x)))).mean(dim=(2, 3))


def wide_resnet(*, classes: int, channels: int = 3, depth: int = 28, widen: int = 10) -> WideResNet:
    """WideResNet-28-10, by default: 36.5 million parameters, as its authors report.

    The depth is the number of convolutions, those of the shortcuts included: 6n + 4 for n blocks per stage. The three
    stages have `widen` times 16, 32 and 64 channels.
    """
    return WideResNet(depth=depth, widen=widen, classes=classes, channels=channels)


class _WideBlock(nn.Module):
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
        # As in the authors' code: a projection gets the activated input, an identity shortcut the unchanged one.
        passed = x if self.shortcut is None else self.shortcut(activated)
        return self.second(F.relu(self.second_norm(self.first(activated)))) + passed


def _wide_stage(incoming: int, outgoing: int, *, count: int, stride: int) -> nn.Sequential:
    first = _WideBlock(incoming, outgoing, stride=stride)
    return nn.Sequential(first, *(_WideBlock(outgoing, outgoing, stride=1) for _ in range(count - 1)))
