"""Builds the native kernels where that is possible; without them everything runs on plain torch.

They need a C++ compiler and torch's headers, so build without isolation, in an environment that has
torch: ``pip install --no-build-isolation .``
"""

import os
import platform
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

NATIVE = Path("native")
FLAGS = ["-std=c++17", "-O3", "-fno-math-errno", "-fvisibility=hidden"]
AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mprefer-vector-width=512"]
ISA_FLAGS = {
    "avx2": ["-mavx2", "-mfma"],
    "avx2vnni": ["-mavx2", "-mfma", "-mavxvnni"],
    "avx512": AVX512,
    "avx512vnni": [*AVX512, "-mavx512vnni"],
    "amx": [*AVX512, "-mavx512vnni", "-mamx-tile", "-mamx-int8"],
    "avx512bf16": [*AVX512, "-mavx512bf16"],
    "neon": [],
}
MACHINES = {"arm64": "aarch64", "AMD64": "x86_64"}  # what macOS and Windows call them
ISAS = {"x86_64": ["avx2", "avx512", "avx512bf16"], "aarch64": ["neon"]}
ENGINE_ISAS = {
    "x86_64": ["avx2", "avx2vnni", "avx512", "avx512vnni", "amx"],
    "aarch64": ["neon"],
}
KERNELS = ["burst_forward", "burst_backward", "normed_scan"]
FUSING = ["burst_backward", "normed_scan"]  # what decides a level is rounded by hand there
COMMON = ["burst_scan", "burst_scan-scalar", "normed_scan", "normed_scan-scalar", "dispatch"]
ENGINE = [path.stem for path in sorted((NATIVE / "engine").glob("*.cc")) if "-" not in path.stem]
TORCH_2_10 = "0x020a000000000000"


def flags_for(source: str) -> list[str]:
    """Give a file the flags of the instruction set in its name; some may fuse what they add."""
    kernel, _, isa = Path(source).stem.rpartition("-")
    contract = "fast" if isa in ISA_FLAGS and kernel in FUSING else "off"
    return [f"-ffp-contract={contract}", *ISA_FLAGS.get(isa, [])]


class BuildNative(build_ext):
    """Compiles every file with its own flags, on all cores."""

    def build_extension(self, ext: Extension) -> None:
        """Compile and link."""
        compile_one, compile_all = self.compiler._compile, self.compiler.compile

        def with_own_flags(obj: str, src: str, *rest: Any) -> None:
            extension, cc_args, extra, pp_opts = rest
            compile_one(obj, src, extension, cc_args, [*extra, *flags_for(src)], pp_opts)

        def in_parallel(sources: list[str], **options: Any) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                objects = pool.map(lambda source: compile_all([source], **options), sources)
                return [name for names in objects for name in names]

        self.compiler._compile, self.compiler.compile = with_own_flags, in_parallel
        super().build_extension(ext)


def sources_for(machine: str) -> list[Path]:
    """Return what is compiled for a machine, as ``platform.machine()`` calls it."""
    machine = MACHINES.get(machine, machine)
    vectors = [f"{kernel}-{isa}" for isa in ISAS.get(machine, []) for kernel in KERNELS]
    engine_isas = [f"kernels-{isa}" for isa in ENGINE_ISAS.get(machine, [])]
    return [
        *(NATIVE / "src" / f"{name}.cc" for name in (*COMMON, *vectors)),
        *(NATIVE / "engine" / f"{name}.cc" for name in (*ENGINE, "kernels-scalar", *engine_isas)),
        NATIVE / "torch" / "binding.cc",
    ]


def native_extension() -> list[Extension]:
    """Describe the extension, or nothing where torch cannot be imported."""
    try:
        from torch.utils.cpp_extension import include_paths, library_paths  # noqa: PLC0415
    except ImportError:
        return []
    return [
        Extension(
            "lbq._native",
            sources=[str(path) for path in sources_for(platform.machine())],
            include_dirs=[
                *(str(NATIVE / name) for name in ("include", "src", "engine")),
                *include_paths(),
            ],
            library_dirs=library_paths(),
            libraries=["torch", "torch_cpu", "c10"],
            extra_compile_args=FLAGS,
            define_macros=[("TORCH_TARGET_VERSION", TORCH_2_10), ("Py_LIMITED_API", "0x030b0000")],
            depends=[str(path) for path in NATIVE.rglob("*.h")],
            language="c++",
            py_limited_api=True,
            optional="LBQ_REQUIRE_NATIVE"
            not in os.environ,  # no compiler: a warning, and plain torch
        )
    ]


if __name__ == "__main__":
    setup(
        ext_modules=native_extension(),
        cmdclass={"build_ext": BuildNative},
        options={"bdist_wheel": {"py_limited_api": "cp311"}},
    )
