"""Cases of cuda_cases.py: Devices, errors, which devices a process sees."""

from __future__ import annotations

import ctypes as c
import os
import subprocess
import sys

from cuda_cases import HELPERS, PROGRAM, at, call, case, say, size, start


@case
def devices() -> None:
    """
    cuDeviceGet before init | 3
    cuDeviceGetCount before init | 3 77
    cuDriverGetVersion before init | 0 13000
    cuDriverGetVersion NULL | 1
    cuInit flags 1 | 1
    cuInit | 0
    cuInit again | 0
    count | 0 1
    count NULL | 1
    cuDeviceGet 0 | 0 0
    cuDeviceGet 1 | 101 77
    cuDeviceGet -1 | 101 77
    cuDeviceGet 1000 | 101 77
    cuDeviceTotalMem 1 | 101 0
    cuDeviceTotalMem -1 | 101 0
    cuDeviceTotalMem NULL | 1
    attribute 1 | 0 1024
    attribute 39 | 0 2048
    attribute 102 | 0 1
    attribute 115 | 0 1
    attribute 9999 | 1 77
    attribute 0 | 1 77
    attribute NULL | 1
    attribute of device 1 | 101 77
    every attribute of the header | 147
    name in 1 | 0 0
    name in 5 | 0 NVID
    name NULL | 1
    name of device 1 | 101
    uuid v1 is v2 | 0 0 True
    pci in 12 | 1
    pci in 13 | 0
    by pci | 0 0
    by pci junk | 1
    by pci of nobody | 101
    peer of itself | 0 0
    peer of nobody | 101
    p2p of itself | 101
    """
    n, d, v = c.c_int(77), c.c_int(77), c.c_int(77)
    say("cuDeviceGet before init", call("cuDeviceGet", at(d), 0))
    say("cuDeviceGetCount before init", call("cuDeviceGetCount", at(n)), n.value)
    say("cuDriverGetVersion before init", call("cuDriverGetVersion", at(n)), n.value)
    say("cuDriverGetVersion NULL", call("cuDriverGetVersion", None))
    say("cuInit flags 1", call("cuInit", 1))
    say("cuInit", call("cuInit", 0))
    say("cuInit again", call("cuInit", 0))
    say("count", call("cuDeviceGetCount", at(n)), n.value)
    say("count NULL", call("cuDeviceGetCount", None))
    for ordinal in (0, 1, -1, 1000):
        d.value = 77
        say(f"cuDeviceGet {ordinal}", call("cuDeviceGet", at(d), ordinal), d.value)
    for ordinal in (1, -1):
        bytes_total = size(77)
        say(f"cuDeviceTotalMem {ordinal}", call("cuDeviceTotalMem_v2", at(bytes_total), ordinal), bytes_total.value)
    say("cuDeviceTotalMem NULL", call("cuDeviceTotalMem_v2", None, 0))
    for which in (1, 39, 102, 115, 9999, 0):
        v.value = 77
        say(f"attribute {which}", call("cuDeviceGetAttribute", at(v), which, 0), v.value)
    say("attribute NULL", call("cuDeviceGetAttribute", None, 1, 0))
    v.value = 77
    say("attribute of device 1", call("cuDeviceGetAttribute", at(v), 1, 1), v.value)
    say("every attribute of the header", sum(call("cuDeviceGetAttribute", at(v), i, 0) == 0 for i in range(1, 148)))
    text = c.create_string_buffer(b"Z" * 64, 64)
    say("name in 1", call("cuDeviceGetName", text, 1, 0), text.raw[0])
    say("name in 5", call("cuDeviceGetName", text, 5, 0), text.value.decode())
    say("name NULL", call("cuDeviceGetName", None, 5, 0))
    say("name of device 1", call("cuDeviceGetName", text, 5, 1))
    one, two = c.create_string_buffer(16), c.create_string_buffer(16)
    results = call("cuDeviceGetUuid", one, 0), call("cuDeviceGetUuid_v2", two, 0)
    say("uuid v1 is v2", *results, one.raw == two.raw)
    for length in (12, 13):
        say(f"pci in {length}", call("cuDeviceGetPCIBusId", text, length, 0))
    d.value = 77
    say("by pci", call("cuDeviceGetByPCIBusId", at(d), text), d.value)
    say("by pci junk", call("cuDeviceGetByPCIBusId", at(d), b"junk"))
    say("by pci of nobody", call("cuDeviceGetByPCIBusId", at(d), b"0000:ff:00.0"))
    v.value = 77
    say("peer of itself", call("cuDeviceCanAccessPeer", at(v), 0, 0), v.value)
    say("peer of nobody", call("cuDeviceCanAccessPeer", at(v), 0, 1))
    say("p2p of itself", call("cuDeviceGetP2PAttribute", at(v), 1, 0, 0))


@case
def errors() -> None:
    """
    name of 1 before init | 0 CUDA_ERROR_INVALID_VALUE
    name of 720 | 0 CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
    text of 0 | 0 no error
    text of 100 | 0 no CUDA-capable device is detected
    name of 12345 | 1 None
    text of -1 | 1 None
    """
    for what, function, code in (
        ("name of 1 before init", "cuGetErrorName", 1),
        ("name of 720", "cuGetErrorName", 720),
        ("text of 0", "cuGetErrorString", 0),
        ("text of 100", "cuGetErrorString", 100),
        ("name of 12345", "cuGetErrorName", 12345),
        ("text of -1", "cuGetErrorString", -1),
    ):
        text = c.c_char_p(b"untouched")
        result = call(function, code, at(text))
        say(what, result, text.value.decode() if text.value else None)


VISIBLE = {
    "0": "0 1", "GPU-+8hex": "0 1", "GPU-+2hex": "0 1", "full": "0 1", "GPU-": "100", "bare": "100", "upper": "0 1",
    "-1": "100", "": "100", "0,0": "101", "junk": "100", "1": "100", "0,1": "0 1", "1,0": "100", "0,junk": "0 1",
    "junk,0": "100", "0,-1": "0 1", "-1,0": "100", " 0": "0 1", "0 ": "0 1", "00": "0 1", "+0": "0 1", "0x0": "0 1",
    "0junk": "0 1", "NoDevFiles": "100", "none": "100", "all": "100", "void": "100", "full,full": "101",
    "0,full": "0 1", "MIG-x": "100", ",": "100", "0,": "0 1", "GPU-wrong": "100",
}  # fmt: skip


def uuid() -> None:
    start()
    raw = c.create_string_buffer(16)
    call("cuDeviceGetUuid_v2", raw, 0)
    h = raw.raw.hex()
    print(f"GPU-{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}")


@case
def visible_devices() -> None:
    """ """
    child = subprocess.run([sys.executable, PROGRAM, "uuid"], capture_output=True, text=True, check=True)
    full = child.stdout.strip()
    # bare: from its first letter on, because leading digits are read as an ordinal ("0junk"), which some cards have
    for key in VISIBLE:
        value = {
            "GPU-+8hex": full[:12], "GPU-+2hex": full[:6], "upper": full.upper(),
            "bare": full[4:].lstrip("0123456789-"),
            "full,full": f"{full},{full}", "0,full": f"0,{full}", "full": full,
            "GPU-wrong": "GPU-" + "".join("f" if digit != "f" else "0" for digit in full[4:12]),
        }.get(key, key)  # fmt: skip
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": value}
        done = subprocess.run([sys.executable, PROGRAM, "count"], capture_output=True, text=True, env=environment)
        say(repr(key), done.stdout.strip())


visible_devices.__doc__ = "\n".join(f"    {key!r} | {value}" for key, value in VISIBLE.items())


def count() -> None:
    result, n = call("cuInit", 0), c.c_int(7)
    seen = call("cuDeviceGetCount", at(n))
    print(f"{result} {n.value}" if result == 0 and seen == 0 else result if seen == 3 else f"{result} but count {seen}")


HELPERS.update(uuid=uuid, count=count)
