"""The networks of the study by name: plain modules with `features(x)`, the input of the last layer.

torch is imported only to build a network, so that configurations can be checked without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from emabank.study.models.resnet import Network


class NetworkInfo(NamedTuple):
    """The properties of a network that are known without building it."""

    name: str
    """The name in configurations, rows and commands."""
    title: str
    builder: str
    """The module and function that build it."""
    weight_decay: float
    """The paper's value for this family of networks; ours if the paper does not have the family."""
    default_width: int | None = None
    """Channels of the first stage; None for a network of fixed size."""

    def check_width(self, width: int | None) -> int | None:
        """The width to build with: `width`, or else the default; None for a network of fixed size."""
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
        NetworkInfo("resnet8", "ResNet-8", "resnet.resnet8", 1e-4, 16),
        NetworkInfo("resnet20", "ResNet-20", "resnet.resnet20", 1e-4, 16),
        NetworkInfo("resnet18", "ResNet-18", "resnet.resnet18", 1e-4),
        NetworkInfo("resnet34", "ResNet-34", "resnet.resnet34", 1e-4),
        NetworkInfo("wrn-28-10", "WideResNet-28-10", "resnet.wide_resnet", 5e-4),
        NetworkInfo("vgg16", "VGG-16", "vgg.vgg16", 5e-4),
        NetworkInfo("vgg-small", "small VGG", "vgg.vgg_small", 5e-4, 16),
        NetworkInfo("whitened-cnn", "whitened CNN", "whitened_cnn.whitened_cnn", 1e-4, 32),
    )
}


def network_info(name: str) -> NetworkInfo:
    """The properties of the network with this name; `ValueError` lists the known names."""
    if name not in NETWORKS:
        raise ValueError(f"network is {name!r}; give {_listed(list(NETWORKS))}")
    return NETWORKS[name]


def build_network(name: str, *, classes: int, channels: int = 3, width: int | None = None) -> "Network":
    """A new network, initialised from torch's global random generator; by default with its usual width."""
    network = network_info(name)
    width = network.check_width(width)
    module, function = network.builder.split(".")
    build = getattr(import_module(f"emabank.study.models.{module}"), function)
    return build(classes=classes, channels=channels, **({} if width is None else {"width": width}))


def _listed(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
