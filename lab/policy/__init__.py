"""What should happen: the policies that decide about a GPU's memory and time.

A policy is a class made without arguments. The same class runs in three places: in the private interpreter of every
process under test, in the simulator, and under Hypothesis. So a policy is pure: plain integers in, a plain integer
out, no clock (the time is an argument), no input or output, nothing imported but `ALLOWED_MODULES`.

Arguments, the same in every method:

* ``device``   ordinal of the GPU as the container sees it, 0, 1, ...
* ``size``     bytes that the call asks for (what the ledger charges: whole blocks for the families that take them)
* ``kind``     family of the allocation: 0 context, 1 sync, 2 managed, 3 pitched, 4 async, 5 module, 6 vmm, 7 other
* ``used``     bytes that the whole container holds on the device now, reservations in flight included
* ``limit``    bytes the container may hold on the device, 0 = no limit
* ``shared``   in `admit`: bytes of ``used`` that other processes of the container hold;
               in `lease` and `observe`: a writable memoryview of unsigned 64-bit words that all processes of the
               container share for this device. It is valid during the call only.
* ``cost``     work asked for, in launch tokens, at least 1
* ``busy``, ``window``, ``now``   nanoseconds; ``now`` counts from an arbitrary moment and never goes back

Answers:

* ``admit``    0 = admitted, or the code of a CUresult = refused with it (2 = CUDA_ERROR_OUT_OF_MEMORY)
* ``lease``    > 0 = that many tokens are granted, < 0 = wait that many nanoseconds and ask again
* ``observe``  any integer; 0 where the policy has nothing to say
* ``settle``   (after an admitted allocation, ``ok`` = 1 the driver gave it, 0 it refused) and
  ``release`` (after a free): any integer or None

Only ``admit`` is required. An exception, a bool, anything else than an integer, or a number outside these meanings is a
policy fault: it is counted, the charge is refused, and it never harms the process.
"""

from lab.policy._load import PolicyError, load
from lab.policy._memory import OUT_OF_MEMORY, MemoryPolicy
from lab.policy._rules import ALLOWED_MODULES

TYPE_CHECKING = False  # typing itself costs the engine milliseconds of its start, so the Protocol is imported on demand
if TYPE_CHECKING:
    from lab.policy._hash import source_hash
    from lab.policy._protocol import Policy

__all__ = ["ALLOWED_MODULES", "OUT_OF_MEMORY", "MemoryPolicy", "Policy", "PolicyError", "load", "source_hash"]


def __getattr__(name: str) -> object:
    if name == "Policy":
        from lab.policy._protocol import Policy

        return Policy
    if name == "source_hash":
        from lab.policy._hash import source_hash

        return source_hash
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
