"""Cases of cuda_cases.py that ask NVML. Where more than one card is there, they ask the first."""

from __future__ import annotations

import ctypes as c
import functools
import os
import struct
import sys
import time
from collections.abc import Callable, Iterator

from cuda_cases import ASSUMED, FAKE_ONLY, MIB, PTX, at, call, case, current, pointer, say, u64
from cuda_cases import allocated as cuda_allocated

FILL = 0xEE
LISTS = {"": 16, "_v2": 24, "_v3": 24}
NOT_AN_ANSWER = {"nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags", "nvmlErrorString", "nvmlInternalGetExportTable"}


def assumed(function: Callable[[], None]) -> Callable[[], None]:
    ASSUMED.add(function.__name__)
    return case(function)


def fake_only(function: Callable[[], None]) -> Callable[[], None]:
    FAKE_ONLY.add(function.__name__)
    return case(function)


@functools.cache
def library() -> c.CDLL:
    return c.CDLL("libnvidia-ml.so.1")


def ask(name: str, *arguments: object) -> int:
    return int(getattr(library(), name)(*arguments))


def u32(value: int = 0) -> c.c_uint:
    return c.c_uint(value)


def begun() -> c.c_void_p:
    """NVML, initialised, and its first card."""
    assert ask("nvmlInit_v2") == 0
    device = pointer()
    assert ask("nvmlDeviceGetHandleByIndex_v2", 0, at(device)) == 0
    return device


def filled(size: int) -> c.Array[c.c_ubyte]:
    return (c.c_ubyte * size)(*[FILL] * size)


def touched(buffer: c.Array[c.c_ubyte]) -> int:
    return next((i for i in range(len(buffer), 0, -1) if buffer[i - 1] != FILL), 0)


def word(buffer: c.Array[c.c_ubyte], at_byte: int, size: int = 8) -> int:
    return int.from_bytes(bytes(buffer)[at_byte : at_byte + size], "little")


def packed(number: int, *words: int) -> c.Array[c.c_uint]:
    """A versioned structure of these words of four bytes, its version first."""
    size = 4 * (1 + len(words))
    return (c.c_uint * (1 + len(words)))(size | number << 24, *words)


@case
def nvml_before_init() -> None:
    """
    count | 1 7
    handle | 1
    driver version | 1
    CUDA version | 1 0
    shutdown | 1
    """
    n = u32(7)
    say("count", ask("nvmlDeviceGetCount_v2", at(n)), n.value)
    say("handle", ask("nvmlDeviceGetHandleByIndex_v2", 0, at(pointer())))
    say("driver version", ask("nvmlSystemGetDriverVersion", c.create_string_buffer(80), 80))
    v = c.c_int(0)
    say("CUDA version", ask("nvmlSystemGetCudaDriverVersion", at(v)), v.value)
    say("shutdown", ask("nvmlShutdown"))


@case
def nvml_counts_its_beginnings() -> None:
    """
    twice | 0 0
    shutdown once | 0 0 True
    shutdown twice | 0 1
    shutdown thrice | 1
    with flags | 0 0
    """
    n = u32()
    say("twice", ask("nvmlInit_v2"), ask("nvmlInit"))
    say("shutdown once", ask("nvmlShutdown"), ask("nvmlDeviceGetCount_v2", at(n)), n.value > 0)
    say("shutdown twice", ask("nvmlShutdown"), ask("nvmlDeviceGetCount", at(n)))
    say("shutdown thrice", ask("nvmlShutdown"))
    say("with flags", ask("nvmlInitWithFlags", 0), ask("nvmlDeviceGetCount_v2", at(n)))


@case
def nvml_in_a_forked_child() -> None:
    """
    count | 1 7
    handle | 1
    memory | 1
    init | 0
    count then | 0
    """
    device = begun()
    sys.stdout.flush()
    child = os.fork()
    n = u32(7)
    if not child:
        say("count", ask("nvmlDeviceGetCount_v2", at(n)), n.value)
        say("handle", ask("nvmlDeviceGetHandleByIndex_v2", 0, at(pointer())))
        say("memory", ask("nvmlDeviceGetMemoryInfo", device, at((c.c_uint64 * 3)())))
        say("init", ask("nvmlInit_v2"))
        say("count then", ask("nvmlDeviceGetCount_v2", at(n)))
        os._exit(0)
    os.waitpid(child, 0)


@case
def nvml_handles() -> None:
    """
    first | 0 True
    as many as there are | 2 False
    beyond | 2 False
    largest | 2 False
    without a place | 2
    junk UUID | 6
    well-formed UUID | 6
    UUID without room | 7
    """
    device = begun()
    count = u32()
    ask("nvmlDeviceGetCount_v2", at(count))
    for what, index in (
        ("first", 0),
        ("as many as there are", count.value),
        ("beyond", count.value + 99),
        ("largest", 0xFFFFFFFF),
    ):
        d = pointer(7)
        say(what, ask("nvmlDeviceGetHandleByIndex_v2", u32(index), at(d)), d.value != 7)
    say("without a place", ask("nvmlDeviceGetHandleByIndex_v2", 0, None))
    d = pointer()
    say("junk UUID", ask("nvmlDeviceGetHandleByUUID", b"junk", at(d)))
    say("well-formed UUID", ask("nvmlDeviceGetHandleByUUID", b"GPU-00000000-0000-0000-0000-000000000000", at(d)))
    text = c.create_string_buffer(96)
    ask("nvmlDeviceGetUUID", device, text, 96)
    say("UUID without room", ask("nvmlDeviceGetUUID", device, text, 20))


@case
def nvml_memory() -> None:
    """
    version 1 | 0 total is used and free True
    version 2 | 0 total is reserved, used and free True
    reserved | counted as used by version 1 True
    word 0x0 | 13 untouched
    word 0x1 | 13 untouched
    word 0x1000028 | 13 untouched
    word 0x2000020 | 13 untouched
    word 0xffffffff | 13 untouched
    without a place | 2
    without a device | 2
    """
    device = begun()
    first, second = filled(24), filled(40)
    result = ask("nvmlDeviceGetMemoryInfo", device, at(first))
    total, free, used = (word(first, 8 * i) for i in range(3))
    say("version 1", result, "total is used and free", total == free + used)
    c.c_uint.from_buffer(second).value = 0x2000028
    result = ask("nvmlDeviceGetMemoryInfo_v2", device, at(second))
    whole, reserved, left, taken = (word(second, 8 * i) for i in range(1, 5))
    say("version 2", result, "total is reserved, used and free", whole == reserved + left + taken)
    say("reserved", "counted as used by version 1", (total, used) == (whole, reserved + taken))
    for version in (0, 1, 0x1000028, 0x2000020, 0xFFFFFFFF):
        third = filled(40)
        c.c_uint.from_buffer(third).value = version
        result = ask("nvmlDeviceGetMemoryInfo_v2", device, at(third))
        say(f"word {version:#x}", result, "untouched" if bytes(third)[4:] == bytes([FILL]) * 36 else "written")
    say("without a place", ask("nvmlDeviceGetMemoryInfo", device, None))
    say("without a device", ask("nvmlDeviceGetMemoryInfo", None, at(first)))


def mine(form: str, device: c.c_void_p) -> str:
    """The row of this process in a list, in words; the others' places do not matter."""
    count, rows = u32(100), filled(100 * 24)
    result = ask(f"nvmlDeviceGetComputeRunningProcesses{form}", device, at(count), at(rows))
    stride = LISTS[form]
    for i in range(count.value):
        if word(rows, i * stride, 4) == os.getpid():
            tail = f" {word(rows, i * stride + 16, 4):x}" if stride == 24 else ""
            return f"{result} {stride} holds memory {word(rows, i * stride + 8) > MIB}{tail}"
    return f"{result} not listed"


@case
def nvml_process_lists() -> None:
    """
    v1 count | 7 untouched
    v1 no room | 7 untouched
    v1 row | 0 16 holds memory True
    v2 count | 7 untouched
    v2 no room | 7 untouched
    v2 row | 0 24 holds memory True ffffffff
    v3 count | 7 untouched
    v3 no room | 7 untouched
    v3 row | 0 24 holds memory True ffffffff
    room without a buffer | 2
    without a count | 2
    graphics | 0 0
    MPS | 0 0
    details | 7
    """
    held = current()
    device = begun()
    for form in LISTS:
        name, buffer = f"nvmlDeviceGetComputeRunningProcesses{form}", filled(64)
        say(f"{form.strip('_') or 'v1'} count", ask(name, device, at(u32(0)), None), "untouched")
        result = ask(name, device, at(u32(0)), at(buffer))
        say(f"{form.strip('_') or 'v1'} no room", result, "untouched" if not touched(buffer) else "written")
        say(f"{form.strip('_') or 'v1'} row", mine(form, device))
    newest = "nvmlDeviceGetComputeRunningProcesses_v3"
    say("room without a buffer", ask(newest, device, at(u32(100)), None))
    say("without a count", ask(newest, device, None, None))
    for what, kind in (("graphics", "Graphics"), ("MPS", "MPSCompute")):
        count = u32(0)
        say(what, ask(f"nvmlDeviceGet{kind}RunningProcesses_v3", device, at(count), None), count.value)
    say("details", ask("nvmlDeviceGetRunningProcessDetailList", device, at(packed(1, 0, 0, 0, 0, 0))))
    assert held


@case
def nvml_samples_in_two_calls() -> None:
    """
    count | 7 72
    no room | 7 72
    room for one | 7 72
    room without a buffer | 7 72
    newer than now | 6 2048
    without a count | 2
    newer form | 7 72
    """
    device = begun()
    name, buffer = "nvmlDeviceGetProcessUtilization", filled(32 * 2048)
    for what, room, given in (
        ("count", 0, False),
        ("no room", 0, True),
        ("room for one", 1, True),
        ("room without a buffer", 100, False),
    ):
        n = u32(room)
        say(what, ask(name, device, at(buffer) if given else None, at(n), u64(0)), n.value)
    n = u32(2048)
    say("newer than now", ask(name, device, at(buffer), at(n), u64(1 << 62)), n.value)
    say("without a count", ask(name, device, None, None, u64(0)))
    info = packed(1, 0, 0, 0, 0, 0)
    say("newer form", ask("nvmlDeviceGetProcessesUtilizationInfo", device, at(info)), info[1])


@case
def nvml_settings_of_a_card() -> None:
    """
    accounting | 0 0
    compute mode | 0 0
    driver text | 0 True
    CUDA and NVML name one card | True
    """
    device = begun()
    for what, name in (("accounting", "nvmlDeviceGetAccountingMode"), ("compute mode", "nvmlDeviceGetComputeMode")):
        value = u32(7)
        say(what, ask(name, device, at(value)), value.value)
    text = c.create_string_buffer(96)
    say("driver text", ask("nvmlSystemGetDriverVersion", text, 96), text.value.count(b".") >= 1)
    assert call("cuInit", 0) == 0
    raw, count = (c.c_ubyte * 16)(), u32()
    call("cuDeviceGetUuid_v2", at(raw), 0)
    ask("nvmlDeviceGetCount_v2", at(count))
    texts = []
    for index in range(count.value):
        ask("nvmlDeviceGetHandleByIndex_v2", index, at(device))
        ask("nvmlDeviceGetUUID", device, text, 96)
        texts.append(text.value.decode().removeprefix("GPU-").replace("-", ""))
    say("CUDA and NVML name one card", bytes(raw).hex() in texts)


# -- every name ------------------------------------------------------------------------------------------------------


def exported() -> Iterator[str]:
    """The functions that the library of this process exports, from its own ELF tables."""
    library()
    with open("/proc/self/maps") as maps:
        path = next(line.split()[-1] for line in maps if "libnvidia-ml.so" in line)
    with open(path, "rb") as file:
        data = file.read()
    offset, size, count = struct.unpack_from("<Q", data, 40)[0], *struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, offset + size * i) for i in range(count)]
    table = next(section for section in sections if section[1] == 11)  # SHT_DYNSYM
    names = sections[table[6]][4]
    for i in range(table[5] // 24):
        name, kind, _, section = struct.unpack_from("<IBBH", data, table[4] + 24 * i)
        if section and kind & 15 == 2:  # defined, a function
            start = names + name
            yield data[start : data.index(b"\0", start)].decode()


def others() -> str:
    """Names that answer something else than "uninitialised"; each is asked in a process of its own."""
    found = []
    for name in sorted(set(exported()) - NOT_AN_ANSWER):
        if not name.startswith("nvml"):
            continue
        child = os.fork()
        if not child:
            os._exit(ask(name, *([None] * 8)) & 127)
        status = os.waitpid(child, 0)[1]
        if status != 1 << 8:
            found.append(f"{name}:{os.waitstatus_to_exitcode(status)}")
    return " ".join(found) or "none"


@case
def nvml_every_name_before_init() -> None:
    """
    enough names | True
    other answers | nvmlSystemGetNVMLVersion:2
    """
    say("enough names", len([name for name in exported() if name.startswith("nvml")]) > 300)
    say("other answers", others())


@case
def nvml_every_name_after_shutdown() -> None:
    """
    other answers | nvmlSystemGetNVMLVersion:2
    in a forked child | nvmlShutdown:-11 nvmlSystemGetNVMLVersion:2
    """
    ask("nvmlInit_v2")
    sys.stdout.flush()
    child = os.fork()
    if not child:
        say("in a forked child", others())
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)
    ask("nvmlShutdown")
    say("other answers", others())


@fake_only
def nvml_nothing_given() -> None:
    """
    other answers than a refusal | nvmlDeviceClearFieldValues:0 nvmlGpmSampleFree:0 nvmlShutdown:0
    """
    begun()
    found = []
    for name in sorted(set(exported()) - NOT_AN_ANSWER):
        if not name.startswith("nvml"):
            continue
        child = os.fork()
        if not child:
            ask("nvmlInit_v2")
            os._exit(ask(name, *([None] * 8)) & 127)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status not in (2, 3):  # invalid argument, not supported
            found.append(f"{name}:{status}")
    say("other answers than a refusal", *found)


@case
def nvml_versions_of_structures() -> None:
    """
    temperature of no sensor | 2 untouched
    PCI | 25 untouched
    UUID | 25
    branch | 25 untouched
    details of no mode | 2 untouched
    samples | 25 untouched
    performance counters | 25 untouched
    memory by 2 | 13
    """
    device = begun()
    for what, name, size, first in (
        ("temperature of no sensor", "nvmlDeviceGetTemperatureV", 12, True),
        ("PCI", "nvmlDeviceGetPciInfoExt", 64, True),
        ("branch", "nvmlSystemGetDriverBranch", 84, False),
        ("details of no mode", "nvmlDeviceGetRunningProcessDetailList", 24, True),
        ("samples", "nvmlDeviceGetProcessesUtilizationInfo", 24, True),
        ("performance counters", "nvmlGpmQueryDeviceSupport", 8, True),  # of which the version is no packed word
    ):
        results = set()
        for version in (0, 2, size, 9 << 24 | size, 0xFFFFFFFF):
            buffer = filled(256)
            c.c_uint.from_buffer(buffer).value = version
            results.add((ask(name, device, at(buffer)) if first else ask(name, at(buffer), 80), touched(buffer)))
        codes = {code for code, _ in results}
        whole = all(length in (0, 3, 4) for _, length in results)
        say(what, *codes, "untouched" if whole else "written")
    uuid = packed(2, 1)
    say("UUID", ask("nvmlDeviceGetHandleByUUIDV", at(uuid), at(pointer())))
    memory = filled(40)
    c.c_uint.from_buffer(memory).value = 2
    say("memory by 2", ask("nvmlDeviceGetMemoryInfo_v2", device, at(memory)))


@case
def nvml_names_and_texts() -> None:
    """
    own UUID | 0 True
    lower case | 0 True
    driver without room | 7
    serial number without a place | 2
    name without a device | 2
    after a child of fork | 0
    """
    device = begun()
    found, text, count = pointer(), c.create_string_buffer(96), u32()
    ask("nvmlDeviceGetUUID", device, text, 96)
    say("own UUID", ask("nvmlDeviceGetHandleByUUID", text.value, at(found)), found.value == device.value)
    pci = filled(68)
    ask("nvmlDeviceGetPciInfo_v3", device, at(pci))
    bus = bytes(pci)[36:].split(b"\0")[0].lower()
    say("lower case", ask("nvmlDeviceGetHandleByPciBusId_v2", bus, at(found)), found.value == device.value)
    say("driver without room", ask("nvmlSystemGetDriverVersion", c.create_string_buffer(4), 4))
    say("serial number without a place", ask("nvmlDeviceGetHandleBySerial", b"1", None))
    say("name without a device", ask("nvmlDeviceGetName", None, text, 96))
    child = os.fork()
    if not child:
        ask("nvmlInit_v2")
        os._exit(0)
    os.waitpid(child, 0)
    say("after a child of fork", ask("nvmlDeviceGetCount_v2", at(count)))


@case
def nvml_topology() -> None:
    """
    itself | 3 7
    without a place | 2
    nearest without a count | 2
    nearest without a buffer | 2
    own level | 0 0
    peer of itself | 0
    set of a processor | 0 True
    set of no processor | 2
    """
    device = begun()
    value, count = u32(7), u32(0)
    say("itself", ask("nvmlDeviceGetTopologyCommonAncestor", device, device, at(value)), value.value)
    say("without a place", ask("nvmlDeviceGetTopologyCommonAncestor", device, device, None))
    say("nearest without a count", ask("nvmlDeviceGetTopologyNearestGpus", device, 40, None, None))
    say("nearest without a buffer", ask("nvmlDeviceGetTopologyNearestGpus", device, 40, at(u32(1)), None))
    say("own level", ask("nvmlDeviceGetTopologyNearestGpus", device, 0, at(count), None), count.value)
    say("peer of itself", ask("nvmlDeviceGetP2PStatus", device, device, 0, at(value)))
    result = ask("nvmlSystemGetTopologyGpuSet", 0, at(count), None)
    say("set of a processor", result, count.value > 0)
    say("set of no processor", ask("nvmlSystemGetTopologyGpuSet", 1 << 20, at(count), None))


@case
def nvml_events() -> None:
    """
    without a place | 2
    make | 0
    register nothing | 0
    register | 0
    register what does not exist | 3
    register with no set | 2
    wait at once | 10
    wait a little | 10
    wait without a place | 2
    free | 0
    free nothing | 2
    """
    device = begun()
    events, data = pointer(), filled(32)
    say("without a place", ask("nvmlEventSetCreate", None))
    say("make", ask("nvmlEventSetCreate", at(events)))
    say("register nothing", ask("nvmlDeviceRegisterEvents", device, u64(0), events))
    say("register", ask("nvmlDeviceRegisterEvents", device, u64(8), events))
    say("register what does not exist", ask("nvmlDeviceRegisterEvents", device, u64(1 << 40), events))
    say("register with no set", ask("nvmlDeviceRegisterEvents", device, u64(8), None))
    say("wait at once", ask("nvmlEventSetWait_v2", events, at(data), 0))
    say("wait a little", ask("nvmlEventSetWait", events, at(data), 20))
    say("wait without a place", ask("nvmlEventSetWait_v2", events, None, 0))
    say("free", ask("nvmlEventSetFree", events))
    say("free nothing", ask("nvmlEventSetFree", None))


@case
def nvml_a_kernel_that_faults_is_an_event() -> None:
    """
    launch and synchronise | 0 700
    event | 0 8 31 True
    in a set that came later | 10
    """
    current()
    device = begun()
    events, later, data = pointer(), pointer(), filled(32)
    ask("nvmlEventSetCreate", at(events))
    ask("nvmlDeviceRegisterEvents", device, u64(8), events)
    module, function, n = pointer(), pointer(), c.c_uint(1)
    call("cuModuleLoadData", at(module), PTX)
    call("cuModuleGetFunction", at(function), module, b"vadd")
    good, bad = cuda_allocated(4096), u64(64)
    slots = (c.c_void_p * 4)(*(c.addressof(value) for value in (good, good, bad, n)))
    launched = call("cuLaunchKernel", function, *[1] * 6, 0, None, slots, None)
    say("launch and synchronise", launched, call("cuCtxSynchronize"))
    result = ask("nvmlEventSetWait_v2", events, at(data), 10_000)
    say("event", result, word(data, 8), word(data, 16), word(data, 0) == device.value)
    ask("nvmlEventSetCreate", at(later))
    ask("nvmlDeviceRegisterEvents", device, u64(8), later)
    say("in a set that came later", ask("nvmlEventSetWait_v2", later, at(data), 0))


@case
def nvml_fields() -> None:
    """
    none | 2
    without a place | 2
    several | 0
    ECC now | 0 3 1
    power limit | 0 1 True
    PCIe replays | 0 1 True
    remapped rows | 0 3 0
    retired pages | 3
    no field | 2
    beyond the last | 2
    stamps | True
    clear none | 0
    clear what is no counter | 0 2
    """
    device = begun()
    ids = {"ECC now": 1, "power limit": 189, "PCIe replays": 94, "remapped rows": 142, "retired pages": 29}
    ids |= {"no field": 0, "beyond the last": 100_000}
    values = (c.c_ubyte * (40 * len(ids)))()
    for i, field in enumerate(ids.values()):
        c.c_uint.from_buffer(values, 40 * i).value = field
    say("none", ask("nvmlDeviceGetFieldValues", device, 0, at(values)))
    say("without a place", ask("nvmlDeviceGetFieldValues", device, 1, None))
    say("several", ask("nvmlDeviceGetFieldValues", device, len(ids), at(values)))
    for i, what in enumerate(ids):
        result, kind, value = word(values, 40 * i + 28, 4), word(values, 40 * i + 24, 4), word(values, 40 * i + 32, 4)
        told = {"power limit": value > 100_000, "PCIe replays": value < 1000}.get(what, value)  # a card counts some
        say(what, *((result, kind, told) if result == 0 else (result,)))
    say("stamps", all(word(values, 40 * i + 8) > 1 << 40 for i in range(2)))
    say("clear none", ask("nvmlDeviceClearFieldValues", device, 0, at(values)))
    result = ask("nvmlDeviceClearFieldValues", device, 1, at(values))
    say("clear what is no counter", result, word(values, 28, 4))


@assumed
def nvml_performance_metrics() -> None:
    """
    support | 0 1
    make without a place | 2
    make | 0 0
    read without a sample | 2
    read | 0
    of an empty sample | 2
    of one sample | 2
    of no samples | 2
    another version | 25
    of two samples | 0
    graphics | 0 True %
    no metric | 2
    streaming | 0 0
    streaming of another kind | 2
    free | 0 0
    free nothing | 0
    """
    device = begun()
    support, first, second = (c.c_uint * 2)(1, 7), pointer(), pointer()
    say("support", ask("nvmlGpmQueryDeviceSupport", device, at(support)), support[1])
    say("make without a place", ask("nvmlGpmSampleAlloc", None))
    say("make", ask("nvmlGpmSampleAlloc", at(first)), ask("nvmlGpmSampleAlloc", at(second)))
    say("read without a sample", ask("nvmlGpmSampleGet", device, None))
    say("read", ask("nvmlGpmSampleGet", device, first))

    def metrics(version: int, one: c.c_void_p, other: c.c_void_p) -> tuple[int, c.Array[c.c_ubyte]]:
        asked = (c.c_ubyte * (24 + 40 * 500))()
        (c.c_uint * 2).from_buffer(asked)[:] = [version, 2]
        (c.c_void_p * 2).from_buffer(asked, 8)[:] = [one.value, other.value]
        c.c_uint.from_buffer(asked, 24).value = 1  # the other metric stays 0
        return ask("nvmlGpmMetricsGet", at(asked)), asked

    say("of an empty sample", metrics(1, first, second)[0])
    say("of one sample", metrics(1, first, first)[0])
    say("of no samples", metrics(1, pointer(), pointer())[0])
    say("another version", metrics(2, first, second)[0])
    time.sleep(0.2)  # a card reads its counters every 100 ms
    ask("nvmlGpmSampleGet", device, second)
    result, told = metrics(1, first, second)
    say("of two samples", result)
    value, unit = struct.unpack_from("<d", bytes(told), 32)[0], c.c_char_p.from_buffer(told, 24 + 32).value
    say("graphics", word(told, 28, 4), 0 <= value <= 100, (unit or b"").decode())
    say("no metric", word(told, 68, 4))
    state = u32(7)
    say("streaming", ask("nvmlGpmQueryIfStreamingEnabled", device, at(state)), state.value)
    say("streaming of another kind", ask("nvmlGpmSetStreamingEnabled", device, 7))
    say("free", ask("nvmlGpmSampleFree", first), ask("nvmlGpmSampleFree", second))
    say("free nothing", ask("nvmlGpmSampleFree", None))


@case
def nvml_a_limit_of_power() -> None:
    """
    constraints without a place | 2 2
    limit within constraints | True
    """
    device = begun()
    low, high, now = u32(), u32(), u32()
    name = "nvmlDeviceGetPowerManagementLimitConstraints"
    say("constraints without a place", ask(name, device, None, at(high)), ask(name, device, at(low), None))
    assert ask(name, device, at(low), at(high)) == 0
    assert ask("nvmlDeviceGetPowerManagementLimit", device, at(now)) == 0
    say("limit within constraints", low.value <= now.value <= high.value)


# -- what no card was asked yet --------------------------------------------------------------------------------------


@assumed
def nvml_serial_number_and_versions() -> None:
    """
    own serial number | 0 True
    serial number without room | 7
    temperature of the GPU | 25
    details of compute | 25
    version before init | 0 True
    """
    text = c.create_string_buffer(96)
    before = ask("nvmlSystemGetNVMLVersion", text, 96), text.value.count(b".") >= 2
    device, found = begun(), pointer()
    result = ask("nvmlDeviceGetSerial", device, text, 96)
    say("own serial number", result, ask("nvmlDeviceGetHandleBySerial", text, at(found)) == 0)
    say("serial number without room", ask("nvmlDeviceGetSerial", device, text, 2))
    say("temperature of the GPU", ask("nvmlDeviceGetTemperatureV", device, at(packed(2, 0, 0))))
    say("details of compute", ask("nvmlDeviceGetRunningProcessDetailList", device, at(packed(2, 0, 0, 0, 0, 0))))
    say("version before init", *before)
