"""Every network of the study by its name: the facts of known.py, each joined to what builds it."""

from collections.abc import Callable
from dataclasses import dataclass

from emabank.study.models.known import KNOWN_NETWORKS, KnownNetwork, known_network
from emabank.study.models.resnet import ResNet, resnet8, resnet18, resnet20, resnet34
from emabank.study.models.vgg import VGG, vgg16, vgg_small
from emabank.study.models.wide_resnet import WideResNet, wide_resnet

StudyNetwork = ResNet | WideResNet | VGG
"""Each has `features(x)`, `[n, d]`, and a last linear layer `head`: its output is `head(features(x))`."""


@dataclass(frozen=True, kw_only=True)
class Network(KnownNetwork):
    """The facts of one network and its builder."""

    build: Callable[..., StudyNetwork]
    """Takes `classes` and `channels`, and `width` where the network has a default width."""


_BUILDERS: dict[str, Callable[..., StudyNetwork]] = {
    "resnet8": resnet8,
    "resnet20": resnet20,
    "resnet18": resnet18,
    "resnet34": resnet34,
    "wrn-28-10": wide_resnet,
    "vgg16": vgg16,
    "vgg-small": vgg_small,
}
NETWORKS = {name: Network(**vars(known), build=_BUILDERS[name]) for name, known in KNOWN_NETWORKS.items()}


def build_network(name: str, *, classes: int, channels: int = 3, width: int | None = None) -> StudyNetwork:
    """A new network with weights from torch's global random numbers.

    Args:
        name: a name of `NETWORKS`.
        classes: how many logits.
        channels: of the images, 3 for colours, 1 for grey.
        width: channels of the first stage, for the networks that come in widths; None takes the usual one.

    >>> network = build_network("vgg-small", classes=10, channels=1, width=8)
    >>> network.head
    Linear(in_features=32, out_features=10, bias=True)
    """
    width = known_network(name).checked_width(width)
    for said, count in (("classes", classes), ("channels", channels)):
        if count < 1:
            raise ValueError(f"{said} is {count}; a network needs 1 or more")
    sized = {} if width is None else {"width": width}
    return NETWORKS[name].build(classes=classes, channels=channels, **sized)
