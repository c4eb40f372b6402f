"""What every reader of image files returns, in numpy."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Tell = Callable[[int, int], None]
"""Called with how much is done, and of how much."""


class LabelledImages(NamedTuple):
    """Images uint8 `[n, channels, height, width]`, labels int64 `[n]`, and the names of the classes where known."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
