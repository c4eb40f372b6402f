"""What the networks of the studies compute and hold, in numbers: for what is to be known without torch.

Counted from the networks themselves; a test counts again, so that none of them can go stale.
"""

from typing import NamedTuple


class Counted(NamedTuple):
    """The size of one network for images of one size."""

    multiply_adds: int
    """Of its convolutions and linear layers, in the forward pass of one image; the rest is next to nothing."""
    parameters: int


# Network, channels of its first stage (None where there is one size only), image (channels, height, width), classes.
COUNTED: dict[tuple[str, int | None, tuple[int, int, int], int], Counted] = {
    ("resnet8", 8, (1, 8, 8), 5): Counted(189_088, 18_909),
    ("resnet8", 8, (1, 8, 8), 10): Counted(189_248, 19_074),
    ("resnet8", 12, (1, 8, 8), 10): Counted(422_112, 42_430),
    ("vgg-small", 8, (1, 8, 8), 10): Counted(152_384, 18_370),
    ("resnet8", 32, (3, 16, 16), 100): Counted(12_030_464, 309_636),
    ("vgg-small", 32, (3, 16, 16), 100): Counted(9_671_168, 299_908),
    ("whitened-cnn", 32, (3, 32, 32), 10): Counted(33_066_272, 497_802),
    ("resnet18", None, (3, 32, 32), 10): Counted(555_422_720, 11_173_962),
    ("resnet18", None, (3, 32, 32), 100): Counted(555_468_800, 11_220_132),
    ("resnet18", None, (3, 64, 64), 200): Counted(2_221_772_800, 11_271_432),
    ("resnet34", None, (3, 32, 32), 10): Counted(1_159_402_496, 21_282_122),
    ("resnet34", None, (3, 32, 32), 100): Counted(1_159_448_576, 21_328_292),
    ("wrn-28-10", None, (3, 32, 32), 100): Counted(5_243_386_368, 36_536_884),
    ("vgg16", None, (3, 32, 32), 100): Counted(313_772_032, 15_291_300),
}


def counted(network: str, width: int | None, image: tuple[int, int, int], classes: int) -> Counted:
    """The numbers of a network as some study has it; `ValueError` for another, which has to be counted first."""
    key = network, width, image, classes
    if key not in COUNTED:
        of = network if width is None else f"{network} of width {width}"
        size = " x ".join(map(str, image))
        raise ValueError(
            f"no operations are known of {of} for images of {size} in {classes} classes; count them into COUNTED"
        )
    return COUNTED[key]
