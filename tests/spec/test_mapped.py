"""Looks at arrays that other processes write: nothing may be counted first and collected after."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lab
from lab.spec.mapped import taken

COLUMN = np.array([0, 3, 0, 0, 9], dtype="u4")


class Changing(np.ndarray):  # type: ignore[type-arg]  # numpy's own generic parameters say nothing here
    """A column whose mapping changes whenever it is looked at twice, as numpy notices it."""

    def nonzero(self) -> Any:
        if np.may_share_memory(self, COLUMN):
            raise RuntimeError("number of non-zero array elements changed during function execution.")
        return super().nonzero()


def test_one_look() -> None:
    assert taken(COLUMN).tolist() == [1, 4]
    assert taken(COLUMN.view(Changing)).tolist() == [1, 4]
    with pytest.raises(RuntimeError, match="changed"):
        np.flatnonzero(COLUMN.view(Changing))


@pytest.mark.parametrize("room", ["node", "region"])
def test_rooms_that_map_files_look_once(room: str) -> None:
    folder = Path(lab.__file__).parent / room
    assert [path.name for path in folder.rglob("*.py") if "nonzero(" in path.read_text()] == []
