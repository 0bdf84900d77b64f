"""GPU profiles: the published, measured or assumed constants of one GPU model, from ``profiles/*.toml``.

Every constant carries its evidence (``measured``, ``public`` or ``assumed``) and its source, so that a report can say
how far a number may be trusted. The loader refuses a missing or unknown key: a profile has every constant or none. A
profile with ``base`` is the card of that name, but for the constants that it gives itself, and cut into MIG instances
as its ``cut`` says.
"""

from __future__ import annotations

import dataclasses
import hashlib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

from lab.spec.mig import Cut, InstanceKind, MigError, mig_uuid, parse_cuts, parse_kinds

EVIDENCE = ("measured", "public", "assumed")
NVML_PIDS = ("host", "visible")  # in the order of HL_NVML_PIDS_*

LATENCIES = (  # in the order of HL_LATENCY_*
    "init",
    "context_create",
    "context_nested",
    "context_destroy",
    "alloc",
    "free",
    "nvml_init",
    "nvml_query",
    "launch",
    "module_load",
    "copy_per_mib",
    "process_exit",
    "init_parallel",
    "init_crowd",
    "context_parallel",
    "context_crowd",
    "context_client",
)

_KEYS: dict[str, dict[str, type]] = {
    "identity": {
        "name": str,
        "architecture": int,
        "brand": int,
        "pci_device_id": int,
        "pci_subsystem_id": int,
        "vbios": str,
        "nvml_pids": str,
    },
    "compute": {
        "compute_major": int,
        "compute_minor": int,
        "sm_count": int,
        "threads_per_sm": int,
        "registers_per_sm": int,
        "shared_bytes_per_sm": int,
        "shared_bytes_optin": int,
        "blocks_per_sm": int,
        "cores_per_sm": int,
        "clock_khz": int,
        "idle_clock_khz": int,
        "copy_engines": int,
    },
    "memory": {
        "cuda_total_bytes": int,
        "nvml_total_bytes": int,
        "clock_khz": int,
        "bus_width_bits": int,
        "l2_bytes": int,
        "bar1_bytes": int,
        "ecc": int,
        "integrated": int,
        "host_bytes": int,
        "context_bytes": int,
        "nvml_context_extra": int,
        "printing_bytes": int,
        "allocating_bytes": int,
    },
    "power": {"limit_mw": int, "idle_mw": int, "temperature_c": int, "fan_count": int},
    "bus": {"pcie_generation": int, "pcie_width": int},
    "sharing": {  # of one GPU by processes: time slices, switches out of work and out of idleness, NVML's samples
        "slice_ns": int,
        "switch_ns": int,
        "idle_switch_ns": int,
        "sample_period_ns": int,
        "sample_lag_ns": int,
    },
    "latency_ns": dict.fromkeys(LATENCIES, int),
}


class ProfileError(ValueError):
    """A profile that does not exist or does not hold together; the text is one line."""


@dataclass(frozen=True, kw_only=True)
class Constant:
    """One value with where it comes from."""

    value: int | str
    evidence: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One GPU model. Bytes, kHz, mW, ns; ``constants`` is by ``section.key``."""

    profile: str
    doc: str
    constants: Mapping[str, Constant]
    kinds: tuple[InstanceKind, ...] = ()
    """GPU instances that it can be cut into; none: it knows no MIG."""
    cuts: tuple[Cut, ...] | None = None
    """How it is cut; None: MIG mode is off."""

    def number(self, key: str) -> int:
        """The integer constant ``section.key``."""
        value = self.constants[key].value
        if not isinstance(value, int):
            raise TypeError(f"profile {self.profile}: {key} is text")
        return value

    def text(self, key: str) -> str:
        """The text constant ``section.key``."""
        return str(self.constants[key].value)

    def changed(self, numbers: Mapping[str, int], *, source: str) -> Profile:
        """This card with other integer constants, ``section.key``; ``source`` says on whose word."""
        new = {key: Constant(value=value, evidence="assumed", source=source) for key, value in numbers.items()}
        unknown = sorted(set(new) - set(self.constants))
        if unknown:
            raise ProfileError(f"profile {self.profile}: no constant {unknown[0]}")
        return dataclasses.replace(self, constants={**self.constants, **new})

    @property
    def name(self) -> str:
        """The name as the driver gives it."""
        return self.text("identity.name")

    @property
    def cuda_total_bytes(self) -> int:
        """What ``cuDeviceTotalMem_v2`` gives."""
        return self.number("memory.cuda_total_bytes")

    @property
    def nvml_total_bytes(self) -> int:
        """What NVML gives as total."""
        return self.number("memory.nvml_total_bytes")

    @property
    def nvml_reserved_bytes(self) -> int:
        """What the driver keeps for itself: CUDA total = NVML total - reserved."""
        return self.nvml_total_bytes - self.cuda_total_bytes

    @property
    def context_bytes(self) -> int:
        """Device memory of a bare context as CUDA sees it."""
        return self.number("memory.context_bytes")

    @property
    def latencies(self) -> dict[str, int]:
        """Modelled duration of driver work, ns, by name of :data:`LATENCIES`."""
        return {name: self.number(f"latency_ns.{name}") for name in LATENCIES}


DEFAULT_DRIVER = "580"  # the generation that was measured
MEASURED_CUDA = 13000


@dataclass(frozen=True, kw_only=True)
class Driver:
    """One driver generation: ``cuDriverGetVersion`` and the two version strings of NVML."""

    branch: str
    cuda: int
    driver: str
    nvml: str
    evidence: str
    stages: int = 1
    """2: libcuda.so.1 only opens a second library and looks its names up there."""

    @property
    def folder(self) -> str:
        """Where its libraries are, under the native folder."""
        return "fake" if self.branch == DEFAULT_DRIVER else f"fake-{self.branch}"

    def has(self, *, since: int, absent: bool) -> bool:
        """Whether this generation has a name that drivers know since CUDA version ``since`` (0 = always); ``absent``:
        the measured one, which is the default, has it not, so only a newer one can."""
        return since <= self.cuda and not (absent and since <= MEASURED_CUDA)


def profile_names() -> list[str]:
    """The names of the shipped profiles, sorted."""
    folder = resources.files("lab.spec") / "profiles"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load_profile(name: str) -> Profile:
    """Read the shipped profile ``name``. :class:`ProfileError` names the choices when there is none."""
    entry = resources.files("lab.spec") / "profiles" / f"{name}.toml"
    if "/" in name or not entry.is_file():
        raise ProfileError(f"no GPU profile {name!r}; known: {', '.join(profile_names())}")
    return parse_profile(entry.read_text(encoding="utf-8"), source=f"profiles/{name}.toml")


def parse_profile(text: str, *, source: str) -> Profile:
    """Check and read the TOML ``text`` of a profile; ``source`` names it in errors."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ProfileError(f"{source}: not TOML: {error}") from None
    constants: dict[str, Constant] = {}
    if "base" in data:
        return _based(data, source)
    unknown = set(data) - set(_KEYS) - {"profile", "doc", "gpu_instance"}
    if unknown:
        raise ProfileError(f"{source}: unknown key {sorted(unknown)[0]!r}")
    for section, keys in _KEYS.items():
        table = data.get(section, {})
        for key in sorted(set(keys) ^ set(table)):
            raise ProfileError(f"{source}: {'missing' if key in keys else 'unknown'} key {section}.{key}")
        for key, kind in keys.items():
            constants[f"{section}.{key}"] = _constant(table[key], kind, f"{source}: {section}.{key}")
    try:
        kinds = parse_kinds(data.get("gpu_instance", []), evidence=EVIDENCE)
    except MigError as error:
        raise ProfileError(f"{source}: {error}") from None
    name, doc = str(data.get("profile", "")), str(data.get("doc", ""))
    profile = Profile(profile=name, doc=doc, constants=constants, kinds=kinds)
    if not 0 < profile.cuda_total_bytes <= profile.nvml_total_bytes:
        raise ProfileError(f"{source}: memory.cuda_total_bytes must be positive and not above memory.nvml_total_bytes")
    if profile.text("identity.nvml_pids") not in NVML_PIDS:
        raise ProfileError(f"{source}: identity.nvml_pids must be one of {', '.join(NVML_PIDS)}")
    if not 0 <= profile.number("memory.host_bytes") < profile.cuda_total_bytes:
        raise ProfileError(f"{source}: memory.host_bytes must be below memory.cuda_total_bytes")
    if not 0 <= profile.context_bytes < profile.cuda_total_bytes:
        raise ProfileError(f"{source}: memory.context_bytes must be below memory.cuda_total_bytes")
    return profile


def _based(data: Mapping[str, Any], source: str) -> Profile:
    for key in sorted(set(data) - set(_KEYS) - {"profile", "doc", "base", "cut"}):
        raise ProfileError(f"{source}: unknown key {key!r} of a profile with a base")
    if not set(data) & (set(_KEYS) | {"cut"}):
        raise ProfileError(f"{source}: a profile with a base says what is different: a cut, or constants")
    base = load_profile(str(data["base"]))
    constants, cuts = dict(base.constants), base.cuts
    for section in set(data) & set(_KEYS):
        for key, entry in data[section].items():
            if key not in _KEYS[section]:
                raise ProfileError(f"{source}: unknown key {section}.{key}")
            constants[f"{section}.{key}"] = _constant(entry, _KEYS[section][key], f"{source}: {section}.{key}")
    if "cut" in data:
        try:
            cuts = parse_cuts(base.kinds, data["cut"])
        except MigError as error:
            raise ProfileError(f"{source}: {error}") from None
        if not base.kinds:
            raise ProfileError(f"{source}: {base.profile} cannot be cut: it has no gpu_instance rows")
    return replace(
        base, profile=str(data.get("profile", "")), doc=str(data.get("doc", "")), cuts=cuts, constants=constants
    )


def _constant(entry: Any, kind: type, where: str) -> Constant:
    if not isinstance(entry, dict) or set(entry) != {"value", "evidence", "source"}:
        raise ProfileError(f"{where}: must be {{value, evidence, source}}")
    value = entry["value"]
    if not isinstance(value, (int, str)) or type(value) is not kind:
        raise ProfileError(f"{where}: value must be {kind.__name__}, is {value!r}")
    if entry["evidence"] not in EVIDENCE:
        raise ProfileError(f"{where}: evidence {entry['evidence']!r} is none of {', '.join(EVIDENCE)}")
    return Constant(value=value, evidence=entry["evidence"], source=str(entry["source"]))


def _drivers() -> dict[str, Any]:
    return tomllib.loads((resources.files("lab.spec") / "drivers.toml").read_text(encoding="utf-8"))


def driver_names() -> list[str]:
    """Driver generations that `load_driver` knows, sorted."""
    return sorted(_drivers())


def load_driver(branch: str) -> Driver:
    """The driver generation ``branch`` (``"580"``) from ``drivers.toml``."""
    table = _drivers()
    if branch not in table:
        raise ProfileError(f"no driver generation {branch!r}; known: {', '.join(sorted(table))}")
    row = table[branch]
    return Driver(
        branch=branch,
        cuda=row["cuda"],
        driver=row["driver"],
        nvml=row["nvml"],
        evidence=row["evidence"],
        stages=row.get("stages", 1),
    )


def device_uuid(seed: int, index: int) -> bytes:
    """16 bytes that identify GPU ``index`` of a node made from ``seed``, the same everywhere (UUID version 4 form)."""
    raw = bytearray(hashlib.sha256(f"hooklab gpu {seed} {index}".encode()).digest()[:16])
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    return bytes(raw)


def uuid_text(raw: bytes, *, mig: bool = False) -> str:
    """``GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx``, as NVML writes it; ``MIG-...`` of an instance."""
    digits = raw.hex()
    kind = "MIG" if mig else "GPU"
    return f"{kind}-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def node_uuids(seed: int, profiles: Sequence[Profile]) -> list[list[str]]:
    """UUIDs of a node made from ``seed``, by card: its own, then those of its MIG devices in their order."""
    found = []
    for card, profile in enumerate(profiles):
        own = uuid_text(device_uuid(seed, card))
        found.append([own, *(uuid_text(mig_uuid(seed, card, cut), mig=True) for cut in profile.cuts or ())])
    return found
