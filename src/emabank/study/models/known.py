"""What is known of each network without building it: names, widths, weight decays. Imports no torch, for config.py."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class KnownNetwork:
    """The facts of one network."""

    name: str
    """How configurations, rows and the command line call it."""
    weight_decay: float
    """That of its family in the paper."""
    has_batchnorm: bool
    """Without batch norm, an average has no statistics to recompute."""
    default_width: int | None = None
    """Channels of the first stage where none are asked for; None where the network has one size only."""
    smallest_side: int = 1
    """Height and width, in pixels, of the smallest images it takes."""

    @property
    def takes_width(self) -> bool:
        """Whether the network comes in other widths.

        >>> KNOWN_NETWORKS["resnet8"].takes_width, KNOWN_NETWORKS["resnet18"].takes_width
        (True, False)
        """
        return self.default_width is not None

    def checked_width(self, width: int | None) -> int | None:
        """The width to build it with: the one given, or its default; None for a network of one size.

        >>> [KNOWN_NETWORKS["resnet8"].checked_width(width) for width in (None, 24)]
        [16, 24]
        >>> KNOWN_NETWORKS["resnet18"].checked_width(24)
        Traceback (most recent call last):
        ...
        ValueError: width is 24, and resnet18 has one size; leave the width out, or take resnet8, resnet20 or vgg-small
        """
        if width is None:
            return self.default_width
        if not self.takes_width:
            sized = [name for name, network in KNOWN_NETWORKS.items() if network.takes_width]
            raise ValueError(
                f"width is {width}, and {self.name} has one size; leave the width out, or take {_listed(sized)}"
            )
        if width < 1:
            raise ValueError(f"width is {width}; give 1 or more channels, {self.default_width} is usual in {self.name}")
        return width


def known_network(name: str) -> KnownNetwork:
    """The facts of the network with this name.

    >>> known_network("wrn-28-10").weight_decay
    0.0005
    >>> known_network("resnet9")
    Traceback (most recent call last):
    ...
    ValueError: network is 'resnet9'; give resnet8, resnet20, resnet18, resnet34, wrn-28-10, vgg16 or vgg-small
    """
    if name not in KNOWN_NETWORKS:
        raise ValueError(f"network is {name!r}; give {_listed(list(KNOWN_NETWORKS))}")
    return KNOWN_NETWORKS[name]


def _listed(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


# Weight decays: the paper's, by family.
_ALL = (
    KnownNetwork(name="resnet8", weight_decay=1e-4, has_batchnorm=True, default_width=16),
    KnownNetwork(name="resnet20", weight_decay=1e-4, has_batchnorm=True, default_width=16),
    KnownNetwork(name="resnet18", weight_decay=1e-4, has_batchnorm=True),
    KnownNetwork(name="resnet34", weight_decay=1e-4, has_batchnorm=True),
    KnownNetwork(name="wrn-28-10", weight_decay=5e-4, has_batchnorm=True),
    KnownNetwork(name="vgg16", weight_decay=5e-4, has_batchnorm=False, smallest_side=32),
    KnownNetwork(name="vgg-small", weight_decay=5e-4, has_batchnorm=False, default_width=16, smallest_side=8),
)
KNOWN_NETWORKS = {network.name: network for network in _ALL}
