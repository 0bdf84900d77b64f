"""Cases of cuda_cases.py: parts of a device's multiprocessors, and the contexts made of them."""

from __future__ import annotations

import ctypes as c

from cuda_cases import at, call, case, free, pointer, say, start


class Resource(c.Structure):
    _fields_ = (("type", c.c_int), ("inside", c.c_ubyte * 92), ("count", c.c_uint), ("rest", c.c_ubyte * 44))


@case
def green_resources() -> None:
    """
    of the device | 0 1 True
    of device 5 | 101
    type 7 | 914
    how many groups of 16 | 0 8
    split into two | 0 2 16 16
    the rest | 1 True
    at least 1 | 0 True
    at least too many | 915
    no resource | 1
    described | 0
    died | 11
    """
    start()
    device, sms, n = Resource(), c.c_int(), c.c_uint(7)
    call("cuDeviceGetAttribute", at(sms), 16, 0)
    say("of the device", call("cuDeviceGetDevResource", 0, at(device), 1), device.type, device.count == sms.value)
    say("of device 5", call("cuDeviceGetDevResource", 5, at(Resource()), 1))
    say("type 7", call("cuDeviceGetDevResource", 0, at(Resource()), 7))
    split = "cuDevSmResourceSplitByCount"
    say("how many groups of 16", call(split, None, at(n), at(device), None, 0, 16), n.value)
    parts, rest = (Resource * 2)(), Resource()
    n.value = 2
    say(
        "split into two",
        call(split, parts, at(n), at(device), at(rest), 0, 16),
        n.value,
        parts[0].count,
        parts[1].count,
    )
    say("the rest", rest.type, rest.count == sms.value - 32)
    n.value = 1
    one = Resource()
    say("at least 1", call(split, at(one), at(n), at(device), None, 0, 1), one.count == 8)
    say("at least too many", call(split, at(one), at(n), at(device), None, 0, 4096))
    say("no resource", call(split, at(one), at(n), None, None, 0, 8))
    desc = pointer()
    say("described", call("cuDevResourceGenerateDesc", at(desc), parts, 2))
    call("cuDevResourceGenerateDesc", at(desc), parts, 0)


@case
def green_contexts() -> None:
    """
    create | 0
    flags 0 | 1
    device 5 | 101
    no description | 0
    its resource | 0 16
    as a context | 0 True
    current | 0 True
    stream | 0
    stream that blocks | 1
    whose stream | 0 True
    the default stream | 0 None
    event | 0 0 0
    destroy | 0
    """
    start()
    device, part, n, desc, green = Resource(), Resource(), c.c_uint(1), pointer(), pointer()
    call("cuDeviceGetDevResource", 0, at(device), 1)
    call("cuDevSmResourceSplitByCount", at(part), at(n), at(device), None, 0, 16)
    call("cuDevResourceGenerateDesc", at(desc), at(part), 1)
    say("create", call("cuGreenCtxCreate", at(green), desc, 0, 1))
    say("flags 0", call("cuGreenCtxCreate", at(pointer()), desc, 0, 0))
    say("device 5", call("cuGreenCtxCreate", at(pointer()), desc, 5, 1))
    say("no description", call("cuGreenCtxCreate", at(pointer()), None, 0, 1))
    seen = Resource()
    say("its resource", call("cuGreenCtxGetDevResource", green, at(seen), 1), seen.count)
    context = pointer()
    say("as a context", call("cuCtxFromGreenCtx", at(context), green), bool(context.value))
    say("current", call("cuCtxSetCurrent", context), free() > 0)
    s, found = pointer(), pointer(7)
    say("stream", call("cuGreenCtxStreamCreate", at(s), green, 1, 0))
    say("stream that blocks", call("cuGreenCtxStreamCreate", at(pointer()), green, 0, 0))
    say("whose stream", call("cuStreamGetGreenCtx", s, at(found)), found.value == green.value)
    other = pointer()
    call("cuStreamCreate", at(other), 1)
    context_now = pointer()
    call("cuDevicePrimaryCtxRetain", at(context_now), 0)
    call("cuCtxSetCurrent", context_now)
    say("the default stream", call("cuStreamGetGreenCtx", None, at(found)), found.value)
    event = pointer()
    call("cuCtxSetCurrent", context)
    call("cuEventCreate", at(event), 0)
    results = call("cuGreenCtxRecordEvent", green, event), call("cuGreenCtxWaitEvent", green, event)
    say("event", *results, call("cuEventSynchronize", event))
    say("destroy", call("cuGreenCtxDestroy", green))
