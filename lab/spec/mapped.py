"""Reading arrays that lie in memory which other processes write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


def taken(column: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    """Indices of the entries of a one-dimensional ``column`` that were not zero at one look, in order.

    numpy counts first and collects then: over the mapping itself it raises RuntimeError when an entry changes between.
    """
    return column.copy().nonzero()[0]
