"""A host that is Python: `host.py LIBRARY MODE [N]` with a library made of thin.c and gil.c. Runs under any version.

Modes: calls (from four threads, with and without the host's GIL), gil (the deadlock test), gil-bad (its planted
failure), forks N (a storm beside three busy threads), spawn (child processes of all kinds), exit (while a thread is
inside).
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading

path, mode = sys.argv[1:3]
with_gil = ctypes.PyDLL(path)
without_gil = ctypes.CDLL(path)
for library in (with_gil, without_gil):
    for name in ("thin_boot", "thin_admit", "thin_linger", "gil_hold_and_call", "gil_hold_and_take", "gil_wait"):
        getattr(library, name).restype = ctypes.c_int64
    library.thin_admit.argtypes = [ctypes.c_uint64]
    library.thin_python.restype = ctypes.c_char_p


def check(condition, what):
    if not condition:
        os.write(2, (what + "\n").encode())
        os._exit(99)


def use(library, count):
    for size in range(count):
        check(library.thin_admit(size) == 0, f"refused {size}")
        check(library.thin_admit(1000001 + size) == 2, f"admitted {size}")


def threads(*bodies):
    made = [threading.Thread(target=body, daemon=True) for body in bodies]
    for thread in made:
        thread.start()
    return made


def in_child(body):
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        body()
        os._exit(0)
    check(os.waitpid(child, 0)[1] == 0, "a child failed")


def calls():
    for thread in threads(*[lambda d=d: use(d, 5000) for d in (with_gil, without_gil, with_gil, without_gil)]):
        thread.join()
    import gc
    import json

    check(json.loads(json.dumps({"a": [1, 2.5]})) == {"a": [1, 2.5]}, "the host's own modules")
    gc.collect()


def gil(hold):
    signal.alarm(3 if hold is without_gil.gil_hold_and_take else 60)
    answers = []
    (holder,) = threads(lambda: answers.append(hold()))
    with_gil.gil_wait()
    holder.join()
    check(answers == [0], f"the engine's answer: {answers}")


def forks(count):
    stop = []

    def busy(library):
        while not stop:
            check(library.thin_admit(1) == 0, "refused")

    made = threads(*[lambda d=d: busy(d) for d in (without_gil, with_gil, without_gil)])

    def child():
        use(with_gil, 10)
        in_child(lambda: use(without_gil, 10))

    for _ in range(count):
        in_child(child)
    stop.append(1)
    for thread in made:
        thread.join()


def spawned():
    use(without_gil, 10)


def spawn():
    use(with_gil, 10)
    subprocess.run([sys.executable, "-S", __file__, path, "calls"], check=True)  # vfork or posix_spawn
    in_child(spawned)
    import multiprocessing

    for method in ("fork", "spawn", "forkserver"):
        process = multiprocessing.get_context(method).Process(target=spawned)
        process.start()
        process.join()
        check(process.exitcode == 0, "multiprocessing by " + method)


def leave():
    check(without_gil.thin_boot() == 0, "boot")
    threads(without_gil.thin_linger)
    without_gil.thin_wait_inside()
    sys.exit(23)


def main():
    check(with_gil.thin_boot() == 0, "the engine does not boot")
    if mode == "calls":
        calls()
    elif mode == "gil":
        gil(without_gil.gil_hold_and_call)
    elif mode == "gil-bad":
        gil(without_gil.gil_hold_and_take)
    elif mode == "forks":
        forks(int(sys.argv[3]))
    elif mode == "spawn":
        spawn()
    elif mode == "exit":
        leave()
    else:
        check(False, "no such mode")
    print(with_gil.thin_python().decode())


if __name__ == "__main__":
    main()
