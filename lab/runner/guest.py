"""What a process under test is given: the interposer's file and the environment that carries its limits."""

from __future__ import annotations

import ctypes.util
import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab import native
from lab.spec import Dialect, SpecError, load_dialect, load_driver

BUILTIN_LIBRARY = "libhooklab-preload.so"
_MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
_SIZE = re.compile(r"(\d+)\s*([kmgt]?)i?b?", re.IGNORECASE)


class GuestError(Exception):
    """Something the user named cannot be used; the text is one line (exit code 2)."""


def interposer_path(spec: str) -> Path | None:
    """The library to preload: ``builtin``, ``none`` (None) or a path.

    GuestError when the file is missing, is no shared ELF library, or was made for another machine.
    """
    if spec == "none":
        return None
    if spec == "builtin":
        try:
            return native.path(BUILTIN_LIBRARY)
        except FileNotFoundError as error:
            raise GuestError(str(error)) from None
    path = Path(spec).absolute()
    problem = library_problem(path)
    if problem:
        raise GuestError(f"--interposer {spec}: {problem}")
    return path


def library_problem(path: Path) -> str:
    """Why a file cannot be preloaded on this machine, with the mend; empty when it can."""
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    try:
        with path.open("rb") as stream:
            try:
                elf = ELFFile(stream)
                machine, kind, bits = elf["e_machine"], elf["e_type"], elf.elfclass
            except (ELFError, KeyError):
                return "not an ELF file; give a shared library (.so)"
    except OSError as error:
        return f"{error.strerror}; give builtin, none or the path of a shared library"
    wanted = _MACHINES.get(platform.machine())
    if machine != wanted or bits != 64:
        return f"made for {machine} ({bits} bit), this machine is {platform.machine()}; build it for this machine"
    if kind != "ET_DYN":
        return "an ELF file, but not a shared library; link it with -shared"
    return _loader_problem(path)


def fake_directory(driver: str) -> Path:
    """The folder of the fake libraries of a driver generation; FileNotFoundError with one line when it is missing."""
    return native.path(f"{load_driver(driver).folder}/libcuda.so.1").parent


def _loader_problem(path: Path) -> str:
    """What the dynamic loader says when it is asked to preload the file; empty when it does.

    It would start every process without it, or none at all, and say so only on their standard error.
    """
    environment = {"LD_PRELOAD": str(path), "PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C"}
    folders = [str(native.directory() / "fake"), os.environ.get("LD_LIBRARY_PATH", "")]
    environment["LD_LIBRARY_PATH"] = ":".join(filter(None, folders))
    try:
        done = subprocess.run(["true"], env=environment, capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return "a program that does nothing does not end under it within 60 s"
    warned = re.search(r"from LD_PRELOAD cannot be preloaded \((.*)\): ignored", done.stderr)
    failed = re.search(r"error while loading shared libraries: (.*)", done.stderr) if done.returncode == 127 else None
    found = warned or failed
    return f"the loader refuses it: {found[1]}; give a shared library that can be preloaded" if found else ""


def check_natives() -> None:
    """GuestError when the natives were built from other sources than those imported now (an edited clone)."""
    from lab.codegen import fingerprint

    try:
        stale = fingerprint.difference(native.build_info())
    except (OSError, ValueError) as error:
        raise GuestError(str(error)) from None
    if stale:
        raise GuestError(f"natives were built from other {stale}; rebuild with: {native.REBUILD}")


def check_real_driver() -> None:
    """GuestError when this machine has no CUDA driver that a guest's loader would find."""
    folders = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    if any((Path(folder) / "libcuda.so.1").exists() for folder in folders):
        return
    if ctypes.util.find_library("cuda") is None:
        raise GuestError("--on real: this machine has no libcuda.so.1; install NVIDIA's driver or use --on fake")


def parse_size(text: str) -> int:
    """Bytes of a size such as ``4GiB``, ``4096m`` or ``1073741824``. GuestError when it is none."""
    found = _SIZE.fullmatch(text.strip())
    if not found:
        raise GuestError(f"{text!r}: not a size; write for example 4GiB, 4096m or 1073741824")
    return int(found[1]) << (10 * " kmgt".index(found[2].lower() or " "))


def dialect_for(name: str | None, interposer: str) -> Dialect:
    """The dialect asked for; without one, ``hooklab`` for the built-in interposer and ``hami`` for any other."""
    try:
        return load_dialect(name or ("hooklab" if interposer in ("builtin", "none") else "hami"))
    except (SpecError, OSError) as error:
        raise GuestError(f"--dialect: {error}") from None


def plain_dialect(name: str | None, interposer: str) -> Dialect:
    """The dialect for plain processes. GuestError when it needs more than they have."""
    dialect = dialect_for(name, interposer)
    if dialect.needs_container:
        raise GuestError(
            f"--dialect {dialect.name}: needs {dialect.needs_container}, and these are plain processes;"
            " use `hooklab run`, or `hooklab exec --container`, on a machine that allows namespaces"
        )
    return dialect


def limit_environment(
    *,
    dialect: str | None,
    interposer: str,
    region: Path,
    memory: str | None = None,
    cores: int | None = None,
    robust: bool = True,
) -> dict[str, str]:
    """Environment of a process with one limit for all devices: memory as text with a unit, cores in percent."""
    path = interposer_path(interposer)
    return limits(
        plain_dialect(dialect, interposer),
        memory=None if memory is None else parse_size(memory),
        cores=cores,
        interposer="" if path is None else str(path),
        region=str(region),
        robust=robust,
    )


def limits(
    dialect: Dialect,
    *,
    memory: Mapping[int, int] | int | None,
    cores: Mapping[int, int] | int | None,
    interposer: str,
    region: str,
    robust: bool,
    uuids: Sequence[str] = (),
) -> dict[str, str]:
    """The same from bytes and percent, for all devices or by ordinal (one value where the dialect has no ordinals).

    ``uuids``: the node's devices, for dialects that name them.
    """
    if isinstance(memory, Mapping) and not dialect.memory.device_variable and len(set(memory.values())) == 1:
        memory = next(iter(memory.values()))
    try:
        found = dialect.limits(memory=memory, cores=cores, interposer=interposer, ledger=region, uuids=uuids)
    except ValueError as error:
        raise GuestError(str(error)) from None
    return found | {"HOOKLAB_REGION_LOCK": "robust" if robust else "file"}
