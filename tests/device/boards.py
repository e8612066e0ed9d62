"""Run exported C on Cortex-M processors in QEMU."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from lbq.formats.device import export_c

HERE = Path(__file__).parent
BOARDS = {"cortex-m3": "mps2-an385", "cortex-m7": "mps2-an500"}
PER_TICK = 40
"""Instructions per tick: QEMU's -icount shift=0 takes 1 ns for each, and SysTick runs at 25 MHz."""


def needs(*tools):
    """Skip a test where tools are not installed; with LBQ_DEVICES=1 it fails there."""
    missing = [name for name in tools if shutil.which(name) is None]
    is_skipped = bool(missing) and os.environ.get("LBQ_DEVICES") != "1"
    return pytest.mark.skipif(is_skipped, reason=f"not installed: {', '.join(missing)}")


class OnBoard(NamedTuple):
    """What a network did on a board."""

    logits: np.ndarray
    instructions: np.ndarray
    """Per sample, to within one tick."""
    flash: int
    ram: int


def run_on_board(network, samples, folder, *, cpu="cortex-m3", events=False, flags=("-O2",)):
    """Compile a network with samples as constants, run it on a board of QEMU."""
    export_c(network, folder / "net.c", events=events)
    by_sample = samples.transpose(0, 1) if network.takes_frames else samples
    rows = by_sample.reshape(by_sample.shape[0], -1).tolist()
    text = ",\n".join("{" + ",".join(map(str, row)) + "}" for row in rows)
    (folder / "samples.h").write_text(
        f"#include <stdint.h>\n#define NUM_SAMPLES {len(rows)}\n"
        f"static const uint8_t samples[{len(rows)}][{len(rows[0])}] = {{\n{text}}};\n"
    )
    program = folder / f"{cpu}.elf"
    command = ["arm-none-eabi-gcc", "-std=c99", f"-mcpu={cpu}", "-mthumb", "-ffreestanding", *flags]
    command += ["-Wall", "-Wextra", "-Wconversion", "-Werror"]
    where = [command[0], "-print-file-name=include"]
    headers = subprocess.run(where, capture_output=True, text=True, check=True).stdout.strip()
    alone = ["-nostdinc", "-isystem", headers]  # no header of a C library
    subprocess.run([*command, *alone, "-c", "net.c", "-o", "net.o"], cwd=folder, check=True)
    link = ["-nostdlib", "-T", str(HERE / "mps2.ld"), f"-I{folder}", "net.o"]
    startup = [flag for flag in command if not flag.startswith("-W")]
    startup += ["-fno-tree-loop-distribute-patterns", str(HERE / "startup.c")]
    subprocess.run([*startup, *link, "-lgcc", "-o", str(program)], cwd=folder, check=True)
    board = ["-M", BOARDS[cpu], "-nographic", "-monitor", "none", "-serial", "none"]
    done = subprocess.run(
        ["qemu-system-arm", *board, "-icount", "shift=0", "-semihosting", "-kernel", str(program)],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    lines = (done.stdout or done.stderr).split("\n")
    found = [line.split(":") for line in lines if ":" in line]
    logits = np.array([[int(n) for n in numbers.split()] for _, numbers in found])
    ticks = np.array([int(number) for number, _ in found])
    sizes = subprocess.run(
        ["arm-none-eabi-size", "net.o"], cwd=folder, capture_output=True, text=True, check=True
    )
    code, data, bss = map(int, sizes.stdout.split("\n")[1].split()[:3])
    return OnBoard(logits, ticks * PER_TICK, code + data, data + bss)
