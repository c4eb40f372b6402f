"""The networks of the study by name: plain modules with `features(x)`, what the last layer sees.

This file imports torch only to build one, so that configurations can be checked without it.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from emabank.study.models.resnet import ResNet, WideResNet
    from emabank.study.models.vgg import VGG
    from emabank.study.models.whitened_cnn import WhitenedCNN


@dataclass(frozen=True, kw_only=True)
class NetworkInfo:
    """What is known of a network without building it.

    Args:
        name: as configurations, rows and the command line have it.
        builder: the module and function that build it.
        weight_decay: that of its family in the paper, or ours for a network that it does not have.
        default_width: channels of the first stage; None where the network has one size only.
    """

    name: str
    builder: tuple[str, str]
    weight_decay: float
    default_width: int | None = None

    def check_width(self, width: int | None) -> int | None:
        """The width to build it with: the one given, or its default; None for a network of one size."""
        if width is None:
            return self.default_width
        if self.default_width is None:
            sized = [name for name, network in NETWORKS.items() if network.default_width is not None]
            raise ValueError(
                f"width is {width}, and {self.name} has one size; leave the width out, or take {_listed(sized)}"
            )
        if width < 1:
            raise ValueError(f"width is {width}; give 1 or more channels, {self.default_width} is usual in {self.name}")
        return width


NETWORKS = {
    network.name: network
    for network in (
        NetworkInfo(name="resnet8", builder=("resnet", "resnet8"), weight_decay=1e-4, default_width=16),
        NetworkInfo(name="resnet20", builder=("resnet", "resnet20"), weight_decay=1e-4, default_width=16),
        NetworkInfo(name="resnet18", builder=("resnet", "resnet18"), weight_decay=1e-4),
        NetworkInfo(name="resnet34", builder=("resnet", "resnet34"), weight_decay=1e-4),
        NetworkInfo(name="wrn-28-10", builder=("resnet", "wide_resnet"), weight_decay=5e-4),
        NetworkInfo(name="vgg16", builder=("vgg", "vgg16"), weight_decay=5e-4),
        NetworkInfo(name="vgg-small", builder=("vgg", "vgg_small"), weight_decay=5e-4, default_width=16),
        NetworkInfo(name="whitened-cnn", builder=("whitened_cnn", "whitened_cnn"), weight_decay=1e-4, default_width=32),
    )
}


def network_info(name: str) -> NetworkInfo:
    """What is known of the network with this name; `ValueError` lists those there are."""
    if name not in NETWORKS:
        raise ValueError(f"network is {name!r}; give {_listed(list(NETWORKS))}")
    return NETWORKS[name]


def build_network(
    name: str, *, classes: int, channels: int = 3, width: int | None = None
) -> "ResNet | WideResNet | VGG | WhitenedCNN":
    """A new network with weights from torch's global random numbers; its output is `head(features(x))`.

    Args:
        name: a name of `NETWORKS`.
        classes: how many logits.
        channels: of the images, 3 for colours, 1 for grey.
        width: channels of the first stage, for the networks that come in widths; None takes the usual one.

    >>> network = build_network("vgg-small", classes=10, channels=1, width=8)
    >>> network.head
    Linear(in_features=32, out_features=10, bias=True)
    """
    network = network_info(name)
    width = network.check_width(width)
    module, function = network.builder
    build = getattr(import_module(f"emabank.study.models.{module}"), function)
    return build(classes=classes, channels=channels, **({} if width is None else {"width": width}))


def _listed(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
