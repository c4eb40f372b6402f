"""How one tensor of a model lies in memory, and how to see it as one dimension and back. Imports torch alone."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Form:
    """How one tensor of the model lies in memory. Averages keep the live tensor's element order."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, live: Tensor) -> "Form":
        return cls(live.shape, live.stride(), live.dtype, live.device)

    @property
    def is_dense(self) -> bool:
        """Whether the elements fill a stretch of memory without gaps, in whatever order of the dimensions."""
        expected = 1
        for stride, size in sorted((st, n) for st, n in zip(self.stride, self.shape, strict=True) if n != 1):
            if stride != expected:
                return False
            expected *= size
        return True

    @property
    def numel(self) -> int:
        """The number of real values: a complex number is two."""
        return self.shape.numel() * (2 if self.dtype.is_complex else 1)

    def precision(self, least: torch.dtype) -> torch.dtype:
        """The real dtype of its averages: `least`, or wider where the tensor is."""
        real = self.dtype.to_real() if self.dtype.is_complex else self.dtype
        # promote_types knows no common type of the 8-bit floats; they are all narrower than float32.
        return torch.promote_types(least, real) if real.itemsize > 1 else least

    def flat(self, tensor: Tensor) -> Tensor:
        """The real values of a tensor of this form as one dimension in memory order: a view if it is dense."""
        tensor = tensor.as_strided((tensor.numel(),), (1,)) if self.is_dense else tensor.contiguous().view(-1)
        return torch.view_as_real(tensor).view(-1) if tensor.is_complex() else tensor

    def shaped(self, flat: Tensor) -> Tensor:
        """The inverse of `flat`, for values that have been copied out."""
        if self.dtype.is_complex:
            flat = torch.view_as_complex(flat.view(-1, 2))
        return flat.as_strided(self.shape, self.stride) if self.is_dense else flat.view(self.shape)

    def arranged(self, values: Tensor) -> Tensor:
        """Values of this shape as one dimension in the live tensor's memory order (a copy, or a view)."""
        if self.is_dense and values.stride() != self.stride:
            values = torch.empty_strided(self.shape, self.stride, dtype=values.dtype, device=values.device).copy_(
                values
            )
        return self.flat(values)
