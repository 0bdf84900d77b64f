"""Cases of cuda_cases.py: Streams and events."""

from __future__ import annotations

import ctypes as c

from cuda_cases import at, call, case, current, pointer, say, u64, vadd_of


@case
def streams() -> None:
    """
    create | 0
    flags 2 | 1
    NULL | 1
    priority 1 | 0 0
    priority -5 | 0 -5
    priority -6 | 0 -5
    flags of the default | 0 0
    context | 0 True
    id of the default | 0 7
    id of the legacy | 0 7
    device | 0 0
    query | 0 0 0 0
    synchronize | 0 0 0
    capturing | 0 0
    capturing NULL | 1
    capture info | 0 0 77
    destroy the default | 400
    destroy the legacy | 400
    destroy | 0
    host function | 0 0 [5]
    no host function | 1
    """
    context = current()
    s, other, v, w, i = pointer(), pointer(), c.c_int(7), c.c_uint(7), u64(7)
    say("create", call("cuStreamCreate", at(s), 0))
    say("flags 2", call("cuStreamCreate", at(other), 2))
    say("NULL", call("cuStreamCreate", None, 0))
    for priority in (1, -5, -6):
        result = call("cuStreamCreateWithPriority", at(other), 1, priority)
        call("cuStreamGetPriority", other, at(v))
        say(f"priority {priority}", result, v.value)
    say("flags of the default", call("cuStreamGetFlags", None, at(w)), w.value)
    result = call("cuStreamGetCtx", s, at(other))
    say("context", result, other.value == context.value)
    say("id of the default", call("cuStreamGetId", None, at(i)), i.value)
    say("id of the legacy", call("cuStreamGetId", pointer(1), at(i)), i.value)
    say("device", call("cuStreamGetDevice", s, at(v)), v.value)
    say("query", *(call("cuStreamQuery", handle) for handle in (s, None, pointer(1), pointer(2))))
    say("synchronize", *(call("cuStreamSynchronize", handle) for handle in (s, pointer(1), pointer(2))))
    v.value = 77
    say("capturing", call("cuStreamIsCapturing", s, at(v)), v.value)
    say("capturing NULL", call("cuStreamIsCapturing", s, None))
    i.value = 77
    say("capture info", call("cuStreamGetCaptureInfo_v2", s, at(v), at(i), None, None, None), v.value, i.value)
    say("destroy the default", call("cuStreamDestroy_v2", None))
    say("destroy the legacy", call("cuStreamDestroy_v2", pointer(1)))
    say("destroy", call("cuStreamDestroy_v2", s))
    got: list[int] = []
    function = c.CFUNCTYPE(None, c.c_void_p)(lambda data: got.append(data))
    results = call("cuLaunchHostFunc", None, function, pointer(5)), call("cuStreamSynchronize", None)
    say("host function", *results, got)
    say("no host function", call("cuLaunchHostFunc", None, None, None))


@case
def events() -> None:
    """
    flags | 0 0 0 0 1 1 0 0 1
    NULL | 1
    query, not recorded | 0
    synchronize, not recorded | 0
    elapsed, not recorded | 400
    wait for one not recorded | 0
    record | 0
    elapsed, one recorded | 400
    elapsed | 0 True
    elapsed, the other way | 0 True
    elapsed without timing | 400
    no event | 400 400 400 400 400
    record external | 401
    record flags 2 | 1
    wait external | 401
    wait flags 2 | 1
    destroy | 0
    query a destroyed one | 709
    destroy again | 709
    """
    current()
    s, a, b, untimed, t = pointer(), pointer(), pointer(), pointer(), c.c_float(7)
    call("cuStreamCreate", at(s), 0)
    say("flags", *(call("cuEventCreate", at(a), flags) for flags in range(9)))
    say("NULL", call("cuEventCreate", None, 0))
    call("cuEventCreate", at(a), 0)
    call("cuEventCreate", at(b), 0)
    call("cuEventCreate", at(untimed), 2)
    say("query, not recorded", call("cuEventQuery", a))
    say("synchronize, not recorded", call("cuEventSynchronize", a))
    say("elapsed, not recorded", call("cuEventElapsedTime", at(t), a, b))
    say("wait for one not recorded", call("cuStreamWaitEvent", s, a, 0))
    say("record", call("cuEventRecord", a, s))
    call("cuEventRecord", untimed, s)
    say("elapsed, one recorded", call("cuEventElapsedTime", at(t), a, b))
    call("cuEventRecord", b, s)
    call("cuStreamSynchronize", s)
    say("elapsed", call("cuEventElapsedTime", at(t), a, b), t.value >= 0)
    say("elapsed, the other way", call("cuEventElapsedTime", at(t), b, a), t.value <= 0)
    say("elapsed without timing", call("cuEventElapsedTime", at(t), a, untimed))
    results = (
        call("cuEventRecord", None, s),
        call("cuEventQuery", None),
        call("cuEventSynchronize", None),
        call("cuEventDestroy_v2", None),
        call("cuStreamWaitEvent", s, None, 0),
    )
    say("no event", *results)
    say("record external", call("cuEventRecordWithFlags", a, s, 1))
    say("record flags 2", call("cuEventRecordWithFlags", a, s, 2))
    say("wait external", call("cuStreamWaitEvent", s, a, 1))
    say("wait flags 2", call("cuStreamWaitEvent", s, a, 2))
    say("destroy", call("cuEventDestroy_v2", b))
    say("query a destroyed one", call("cuEventQuery", b))
    say("destroy again", call("cuEventDestroy_v2", b))


@case
def stream_destroyed_twice() -> None:
    """
    died | 11
    """
    current()
    s = pointer()
    call("cuStreamCreate", at(s), 0)
    call("cuStreamDestroy_v2", s)
    call("cuStreamDestroy_v2", s)


@case
def launch_into_destroyed_stream() -> None:
    """
    died | 11
    """
    function, parameters = vadd_of(current())
    s = pointer()
    call("cuStreamCreate", at(s), 0)
    call("cuStreamDestroy_v2", s)
    call("cuLaunchKernel", function, 1, 1, 1, 32, 1, 1, 0, s, parameters, None)
