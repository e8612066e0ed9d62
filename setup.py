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
DIRECTORIES = ("src", "engine", "torch")
COMPILE_FLAGS = NATIVE / "compile_flags.txt"
MACHINES = {"arm64": "aarch64", "AMD64": "x86_64"}  # names on macOS and Windows
TORCH_2_10 = "0x020a000000000000"


def read_flags() -> dict[str, list[str]]:
    """Read ``native/compile_flags.txt``: the words of every line by its first one."""
    lines = [line.split() for line in COMPILE_FLAGS.read_text().splitlines()]
    return {words[0]: words[1:] for words in lines if words and words[0] != "#"}


def simd_builds(machine: str) -> dict[str, tuple[list[str], list[str]]]:
    """Return sources and flags by instruction set; ``machine`` as ``platform.machine()`` says."""
    builds = {}
    for isa, (for_machine, *rest) in read_flags().items():
        if for_machine == MACHINES.get(machine, machine):
            folders, flags = rest[0].split(","), rest[1:]
            sources = [path for folder in folders for path in (NATIVE / folder).glob("*-simd.cc")]
            builds[isa] = (sorted(map(str, sources)), flags)
    return builds


class BuildNative(build_ext):
    """Compiles the SIMD sources once per instruction set with its own flags, on all cores."""

    def build_extension(self, ext: Extension) -> None:
        """Compile the SIMD sources, then everything else."""
        compile_all = self.compiler.compile

        def compile_simd(build: tuple[str, tuple[list[str], list[str]]]) -> list[str]:
            isa, (sources, flags) = build
            return compile_all(
                sources,
                output_dir=os.path.join(self.build_temp, isa),
                macros=[("LBQ_ISA", isa)],
                include_dirs=ext.include_dirs,
                extra_postargs=[*ext.extra_compile_args, *read_flags()["simd"], *flags],
            )

        def in_parallel(sources: list[str], **options: Any) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                objects = pool.map(lambda source: compile_all([source], **options), sources)
                return [name for names in objects for name in names]

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for objects in pool.map(compile_simd, simd_builds(platform.machine()).items()):
                ext.extra_objects += objects
        self.compiler.compile = in_parallel
        super().build_extension(ext)


def native_extension() -> list[Extension]:
    """Describe the extension, or nothing where torch cannot be imported."""
    try:
        from torch.utils.cpp_extension import include_paths, library_paths  # noqa: PLC0415
    except ImportError:
        return []
    files = [path for folder in DIRECTORIES for path in sorted((NATIVE / folder).glob("*.cc"))]
    simd = [path for path in files if path.stem.endswith("-simd")]
    optimize = ["-std=c++17", "-O3", "-fvisibility=hidden"]
    return [
        Extension(
            "lbq._native",
            sources=[str(path) for path in files if path not in simd],
            include_dirs=[
                *(str(NATIVE / name) for name in ("include", "src", "engine")),
                *include_paths(),
            ],
            library_dirs=library_paths(),
            libraries=["torch", "torch_cpu", "c10"],
            extra_compile_args=[*optimize, *read_flags()["common"]],
            define_macros=[("TORCH_TARGET_VERSION", TORCH_2_10), ("Py_LIMITED_API", "0x030b0000")],
            depends=[str(path) for path in (*NATIVE.rglob("*.h"), *simd, COMPILE_FLAGS)],
            language="c++",
            py_limited_api=True,
            optional="LBQ_REQUIRE_NATIVE" not in os.environ,  # no compiler: warn and use torch
        )
    ]


if __name__ == "__main__":
    setup(
        ext_modules=native_extension(),
        cmdclass={"build_ext": BuildNative},
        options={"bdist_wheel": {"py_limited_api": "cp311"}},
    )
