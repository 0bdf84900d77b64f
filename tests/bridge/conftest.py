"""The helpers of this folder as modules: tests are imported without being on the path."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

for name in ("faulty_daemon", "fork_rig"):
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
