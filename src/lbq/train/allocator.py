"""The allocator of a process that trains on a CPU."""

import ctypes
import sys


def keep_freed_memory() -> bool:
    """Let glibc keep large freed blocks for the next step; False where there is no glibc.

    By default every large tensor of every step is a fresh mapping whose pages are cleared: a fifth
    of a small network's step (docs/log.md). The process keeps the size of its largest step.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    m_trim_threshold, m_mmap_threshold = -1, -3  # malloc.h
    return bool(mallopt(m_mmap_threshold, 2**30) and mallopt(m_trim_threshold, 2**31 - 1))
