"""Builds the native code: the engine, ``lbq-run``, and the library that torch loads.

The engine and ``lbq-run`` need a C++ compiler, the library also torch's headers: those of the torch
in the environment into which ``pip install .`` installs. What cannot be built is left out with a
line that says why, and networks run on plain torch; LBQ_REQUIRE_NATIVE makes it an error. LBQ_TORCH
names the folder of a torch for another machine (scripts/build_wheel.sh).
"""

import json
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_clib import build_clib
from setuptools.command.build_ext import build_ext
from setuptools.command.install_scripts import install_scripts
from setuptools.errors import BaseError, CCompilerError
from setuptools.modified import newer_group

NATIVE = Path("native")
COMPILE_FLAGS = NATIVE / "compile_flags.txt"
INCLUDES = [str(NATIVE), *(str(NATIVE / name) for name in ("include", "src", "engine", "reader"))]
LIBRARY = ("src", "engine", "engine/operators")
MACHINES = {"arm64": "aarch64", "AMD64": "x86_64"}  # names on macOS and Windows
TORCH_2_10 = "0x020a000000000000"
IS_REQUIRED = "LBQ_REQUIRE_NATIVE" in os.environ
STRIP = ["-Wl,--strip-all"] if sys.platform == "linux" else []


def read_flags() -> dict[str, list[str]]:
    """Read ``native/compile_flags.txt``: the words of every line by its first one."""
    lines = [line.split() for line in COMPILE_FLAGS.read_text().splitlines()]
    return {words[0]: words[1:] for words in lines if words and words[0] != "#"}


def flags() -> list[str]:
    """Return the flags of every source."""
    return ["-std=c++17", "-O3", "-g0", "-fvisibility=hidden", *read_flags()["common"]]


def simd_builds(machine: str) -> dict[str, tuple[list[str], list[str]]]:
    """Return sources and flags by instruction set; ``machine`` as ``platform.machine()`` says."""
    builds = {}
    for isa, (for_machine, *rest) in read_flags().items():
        if for_machine == MACHINES.get(machine, machine):
            folders = rest[0].split(",")
            sources = [path for folder in folders for path in (NATIVE / folder).glob("*-simd.cc")]
            builds[isa] = (sorted(map(str, sources)), rest[1:])
    return builds


def plain_sources(*folders: str) -> list[str]:
    """Return the sources that are compiled once."""
    paths = [path for folder in folders for path in (NATIVE / folder).glob("*.cc")]
    return sorted(str(path) for path in paths if not path.stem.endswith("-simd"))


def compile_all(
    compiler: Any, folder: str, builds: list[tuple[str, list[str], list[str]]]
) -> list[str]:
    """Compile on all cores; ``builds`` has a name, sources and flags each. Return the objects."""
    headers = [str(path) for path in (*NATIVE.rglob("*.h"), COMPILE_FLAGS)]

    def compile_one(job: tuple[str, str, list[str]]) -> list[str]:
        name, source, more = job
        macros = [("LBQ_ISA", name)] if name else []
        output = os.path.join(folder, name or "plain")
        (done,) = compiler.object_filenames([source], output_dir=output)
        if not newer_group([source, *headers], done):
            return [done]
        options = {"macros": macros, "include_dirs": INCLUDES, "extra_postargs": [*flags(), *more]}
        return compiler.compile([source], output_dir=output, **options)

    jobs = [(name, source, more) for name, sources, more in builds for source in sources]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return [name for names in pool.map(compile_one, jobs) for name in names]


@contextmanager
def optional(what: str) -> Generator[None]:
    """Without a compiler: warn and go on."""
    try:
        yield
    except (BaseError, CCompilerError) as error:
        if IS_REQUIRED:
            raise
        print(f"warning: lbq: {what} is not built: {error}", file=sys.stderr)  # noqa: T201


class BuildEngine(build_clib):
    """Compiles the engine and ``lbq-run``, the SIMD sources once per instruction set."""

    objects: list[str]

    def build_libraries(self, libraries: list[Any]) -> None:
        """Compile the engine's objects, which the extension takes too, and link ``lbq-run``."""
        machine = sysconfig.get_platform().split("-")[-1]  # the target's, also if it is another one
        simd = read_flags()["simd"]
        builds = [
            (isa, names, [*simd, *more]) for isa, (names, more) in simd_builds(machine).items()
        ]
        builds.append(("", plain_sources(*LIBRARY), []))
        program = [("", plain_sources("reader", "run"), [])]
        self.objects = []
        with optional("the native engine"):
            self.objects = compile_all(self.compiler, self.build_temp, builds)
            self.compiler.link_executable(
                [*self.objects, *compile_all(self.compiler, self.build_temp, program)],
                "lbq-run",
                self.build_temp,
                extra_postargs=[*STRIP, "-pthread"],
                target_lang="c++",
            )

    def get_library_names(self) -> list[str]:
        """Return no library: the extension takes the objects."""
        return []


class BuildNative(build_ext):
    """Links the extension with the engine's objects."""

    def run(self) -> None:
        """Build the engine first."""
        self.run_command("build_clib")
        engine: Any = self.get_finalized_command("build_clib")
        for extension in self.extensions:
            extension.extra_objects = engine.objects
        super().run()
        if why := self._missing():
            print(  # noqa: T201
                f"lbq: no native kernels, because {why}; neurons on CPUs run on plain torch, "
                f"several times slower. Afterwards `pip install .` adds them.",
                file=sys.stderr,
            )

    def _missing(self) -> str:
        """Return why there is no library, and what to do about it; nothing if there is one."""
        if not self.extensions:
            return "torch is not in this environment: install it first (pip install torch)"
        if not all(Path(path).exists() for path in self.get_outputs()):
            return f"the C++ compiler failed ({compiler()[0]}): install g++ or clang++"
        return ""


class InstallProgram(install_scripts):
    """Puts ``lbq-run`` beside the commands of Python, if it was built."""

    def run(self) -> None:
        """Copy the program."""
        super().run()
        engine: Any = self.get_finalized_command("build_clib")
        program = Path(engine.build_temp, "lbq-run")
        if program.exists():
            self.mkpath(self.install_dir)
            self.outfiles.append(self.copy_file(str(program), self.install_dir)[0])


class Wheel(bdist_wheel):
    """Adds a list of what the wheel is made from (CycloneDX; its place is that of PEP 770)."""

    def write_wheelfile(self, wheelfile_base: str, *args: Any, **options: Any) -> None:
        """Write ``sboms/lbq.cdx.json`` beside the file WHEEL."""
        super().write_wheelfile(wheelfile_base, *args, **options)
        sboms = Path(wheelfile_base, "sboms")
        sboms.mkdir()
        text = json.dumps(bill_of_materials(self.distribution), indent=2)
        (sboms / "lbq.cdx.json").write_text(text + "\n")


def bill_of_materials(distribution: Any) -> dict[str, Any]:
    """List what pip installs with lbq, and the code of others that is compiled into it.

    Written by hand: generators list the packages around them, not what a compiler puts in.
    """
    version = distribution.get_version()
    this = {
        "type": "library",
        "bom-ref": f"pkg:pypi/lbq@{version}",
        "name": "lbq",
        "version": version,
        "licenses": [{"expression": "Apache-2.0"}],
        "purl": f"pkg:pypi/lbq@{version}",
    }
    packages = [need.split(">=")[0] for need in distribution.install_requires]
    others = [
        {"type": "library", "bom-ref": f"pkg:pypi/{name}", "name": name, "purl": f"pkg:pypi/{name}"}
        for name in packages
    ]
    compiled = {
        "libstdc++ headers": (compiler_version(), "GPL-3.0-or-later WITH GCC-exception-3.1")
    }
    if torch := torch_folder():
        text = (torch / "version.py").read_text()
        found = re.search(r"__version__ = '([^'+]+)", text)
        compiled["torch headers"] = (found[1] if found else "unknown", "BSD-3-Clause")
    others += [
        {
            "type": "library",
            "bom-ref": name,
            "name": name,
            "version": number,
            "licenses": [{"expression": licence}],
        }
        for name, (number, licence) in compiled.items()
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": this},
        "components": others,
        "dependencies": [
            {"ref": this["bom-ref"], "dependsOn": [other["bom-ref"] for other in others]}
        ],
    }


def compiler() -> list[str]:
    """Return the C++ compiler that setuptools takes."""
    return (os.environ.get("CXX") or sysconfig.get_config_var("CXX") or "c++").split()


def compiler_version() -> str:
    """Return the version of the C++ compiler."""
    try:
        return subprocess.check_output([*compiler(), "-dumpfullversion"], text=True).strip()  # noqa: S603
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def torch_folder() -> Path | None:
    """Return the folder of torch whose headers and libraries are used.

    pip builds with an import path of its own; the environment into which it installs is still the
    one of the interpreter.
    """
    if "LBQ_TORCH" in os.environ:
        return Path(os.environ["LBQ_TORCH"])
    spec = find_spec("torch")
    if spec and spec.origin:
        return Path(spec.origin).parent
    installed = Path(sysconfig.get_path("platlib"), "torch")
    return installed if (installed / "include").is_dir() else None


def native_extension() -> list[Extension]:
    """Describe the extension, or nothing where torch is not installed."""
    torch = torch_folder()
    if torch is None:
        return []
    return [
        Extension(
            "lbq._native",
            sources=plain_sources("torch"),
            include_dirs=[*INCLUDES, str(torch / "include")],
            library_dirs=[str(torch / "lib")],
            libraries=["torch", "torch_cpu", "c10"],
            extra_compile_args=[*flags(), f"-ffile-prefix-map={torch}=torch"],
            extra_link_args=STRIP,
            define_macros=[("TORCH_TARGET_VERSION", TORCH_2_10), ("Py_LIMITED_API", "0x030b0000")],
            depends=[
                str(path) for path in (*NATIVE.rglob("*.h"), *NATIVE.rglob("*.cc"), COMPILE_FLAGS)
            ],
            language="c++",
            py_limited_api=True,
            optional=not IS_REQUIRED,  # no compiler: warn and use torch
        )
    ]


if __name__ == "__main__":
    setup(
        libraries=[("lbq", {"sources": plain_sources(*LIBRARY)})],
        ext_modules=native_extension(),
        cmdclass={
            "build_clib": BuildEngine,
            "build_ext": BuildNative,
            "install_scripts": InstallProgram,
            "bdist_wheel": Wheel,
        },
        options={"bdist_wheel": {"py_limited_api": "cp311"}},
    )
