"""Policies of the engine's tests; each file that the engine executes is one like this."""

import sys

# ruff: noqa: ARG002 - a policy takes every argument, used or not


class Faulty:
    """Within the limit 0, beyond it 2; kinds 3 to 7 go wrong in their ways; lease lingers while it is told to."""

    def admit(self, device, size, kind, used, limit, shared):
        if kind == 3:
            return True
        if kind == 4:
            return 4711
        if kind == 5:
            raise ValueError("a policy that\nraises")
        if kind == 6:
            print("a policy that prints")
            return "six"
        if kind == 7:
            sys.exit(3)
        return 0 if limit == 0 or used + size <= limit else 2

    def lease(self, device, cost, now, shared):
        shared[1] = 1
        while not shared[0]:
            pass
        return 7
