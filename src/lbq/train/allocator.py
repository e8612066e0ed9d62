"""Memory on CPUs: keep what a step frees for the next one."""

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # names of malloc.h
_LARGEST = 2**30


def keep_freed_memory() -> bool:
    """Tell glibc not to give large blocks back to the system; False where there is no glibc.

    Otherwise every large tensor of every step is fetched from the system and cleared page by page:
    a fifth of a small network's step (docs/log.md). The process then stays as large as its largest
    step.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST) and mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))
