"""The default policy: a container stays within its memory limit; time is not limited."""

OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY


class MemoryPolicy:
    """Admits what fits under the limit, refuses the rest with CUDA_ERROR_OUT_OF_MEMORY, grants every lease."""

    def admit(self, device: int, size: int, kind: int, used: int, limit: int, shared: int) -> int:
        """0 when `limit` is 0 (none) or `used` + `size` bytes stay within it, else CUDA_ERROR_OUT_OF_MEMORY."""
        return 0 if limit == 0 or used + size <= limit else OUT_OF_MEMORY

    def lease(self, device: int, cost: int, now: int, shared: memoryview) -> int:
        """All the tokens that were asked for."""
        return cost

    def observe(self, device: int, busy: int, window: int, now: int, shared: memoryview) -> int:
        """0: an unlimited policy learns nothing from use."""
        return 0
