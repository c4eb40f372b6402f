"""Where averages live in memory: a shelf for each device and precision, tied to the live tensors as they stand.

Imports shelf, forms and torch; knows nothing of names or rules.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from emabank.forms import Form
from emabank.shelf import ROUNDS, Shelf, summed


class Storage:
    """`count` averages of a list of tensors, all equal to those tensors at first.

    `dtype` is the least precision: a float64 tensor is averaged in float64. `device=None` keeps each average beside
    its live tensor.

    >>> live = [torch.zeros(3), torch.zeros(2, 2)]
    >>> storage = Storage(live, 2, dtype=torch.float32, device=None)
    >>> _ = [tensor.fill_(1.0) for tensor in live]
    >>> storage.move([0.5, 1.0])
    >>> storage.read(0)[0], storage.read(1)[1]
    (tensor([0.5000, 0.5000, 0.5000]), tensor([[1., 1.],
            [1., 1.]]))
    """

    def __init__(self, lives: Sequence[Tensor], count: int, *, dtype: torch.dtype, device: torch.device | None) -> None:
        if device is not None and device.type == "meta":
            raise ValueError("device must be one that holds values, such as 'cpu', or None; got 'meta'.")
        self.count, self.dtype, self.device = count, dtype, device
        self._forms = [Form.of(live) for live in lives]
        groups: dict[tuple[torch.device, torch.dtype], dict[int, Form]] = {}
        for index, form in enumerate(self._forms):
            place = device or form.device, form.precision(dtype)
            groups.setdefault(place, {})[index] = form
        self._shelves = [Shelf(forms, count, precision, place) for (place, precision), forms in groups.items()]
        self._turn = 0
        self._bind(lives)
        for average in range(count):
            self.write(average, lives)

    def bound_to(self, lives: Sequence[Tensor]) -> "Storage":
        """This storage with views of these tensors; another one with the same averages where their form has changed."""
        if [Form.of(live) for live in lives] == self._forms:
            self._bind(lives)
            return self
        return self.rebuilt(lives, device=self.device)

    def rebuilt(self, lives: Sequence[Tensor], *, device: torch.device | None) -> "Storage":
        """The same averages laid out anew, for tensors of another form or for another place."""
        other = Storage(lives, self.count, dtype=self.dtype, device=device)
        for average in range(self.count):
            other.write(average, self.read(average))
        return other

    def looks_finite(self, *, whole: bool) -> bool:
        """False if a live tensor holds NaN or inf, or a sum overflowed. Unless `whole`, of large tensors one value each
        and a sixteenth of all are looked at, another sixteenth each time.
        """
        turn = None if whole else self._turn
        self._turn = (self._turn + 1) % ROUNDS
        sums = [total for shelf in self._shelves for total in shelf.look(turn)]
        if self._away:  # one wait for each accelerator and precision, not one for each tensor
            by_kind: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
            for total in sums:
                wide = total.to(torch.promote_types(total.dtype, torch.float32))
                by_kind.setdefault((wide.device, wide.dtype), []).append(wide)
            sums = [torch.stack(totals).sum() for totals in by_kind.values()]
        return all(math.isfinite(total.item()) for total in sums)

    def move(self, weights: list[float]) -> None:
        """Move average k towards the live tensors by weights[k], for all k in one pass."""
        for shelf in self._shelves:
            shelf.move(weights)

    def overlap(self, average: int) -> tuple[float, float, float]:
        """What one average and the live tensors have in common; see `Shelf.overlap`."""
        return summed([shelf.overlap(average) for shelf in self._shelves])

    def read(self, average: int) -> list[Tensor]:
        """Copies of the tensors of one average."""
        out: dict[int, Tensor] = {}
        for shelf in self._shelves:
            shelf.read(average, out)
        return [out[index] for index in range(len(self._forms))]

    def write(self, average: int, values: Sequence[Tensor]) -> None:
        """Set the tensors of one average."""
        for shelf in self._shelves:
            shelf.write(average, values)

    def as_kept(self, lives: Sequence[Tensor]) -> list[Tensor]:
        """Copies of these tensors in the precision and place that their averages have."""
        kinds = zip(lives, self.dtypes(), strict=True)
        return [live.to(self.device or live.device, dtype, copy=True) for live, dtype in kinds]

    def dtypes(self) -> list[torch.dtype]:
        """The dtype that the averages of each tensor have."""
        precisions = [form.precision(self.dtype) for form in self._forms]
        pairs = zip(self._forms, precisions, strict=True)
        return [precision.to_complex() if form.dtype.is_complex else precision for form, precision in pairs]

    def _bind(self, lives: Sequence[Tensor]) -> None:
        for shelf in self._shelves:
            shelf.bind(lives)
        self._away = any(live.device.type != "cpu" for live in lives)
