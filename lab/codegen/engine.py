"""The engine target: over which libpython it is linked, with which frozen modules (see libpython.py and freeze.py)."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import TYPE_CHECKING

from lab.codegen import freeze, libpython
from lab.codegen.failure import BuildError

if TYPE_CHECKING:
    from lab.codegen.build import Job, Target


def make(job: Job, target: Target) -> Path:
    """Build the engine library and, for the copy variant, the private libpython beside it."""
    sources = job.sources(target)
    try:
        plan = libpython.plan(compiler=job.compiler.command)
        frozen = job.temp / "frozen"
        freeze.write(frozen)
        objects = job.objects(target, sources, [f"-I{frozen}", *plan.compile_flags])
        path = job.link(target, objects, [*plan.link_flags, "-Wl,--strip-debug"])
        if plan.install_copy(job.out) is None:
            (job.out / libpython.COPY_NAME).unlink(missing_ok=True)
    except libpython.LibpythonError as error:
        raise BuildError(str(error)) from None
    job.info |= {
        "engine": plan.variant,
        "python": platform.python_version(),
        "libpython": str(plan.library),
        "policy_hash": job.fingerprint["policy_hash"],
    }
    return path
