"""Importing the library costs little and touches nothing."""

import subprocess
import sys

AUDIT = """
import sys
seen = []
FORBIDDEN = ("socket.", "subprocess.Popen", "os.system", "os.fork", "os.exec", "os.posix_spawn",
             "_thread.start_new_thread")
import torch  # what torch does at import is torch's own affair; what we add to it is ours
sys.addaudithook(lambda event, args: event.startswith(FORBIDDEN) and seen.append(event))
import threading
before = threading.active_count()
import lbq
assert threading.active_count() == before, "import lbq started a thread"
assert not seen, seen
import socket
try:
    socket.socket()
finally:
    assert seen, "the audit hook does not see sockets, so it proves nothing"
"""

TIMING = "import time; t = time.process_time(); import {module}; print(time.process_time() - t)"
"""Seconds of the processor, not of the wall: other tests run beside this one."""


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_opens_no_socket_and_starts_no_process_or_thread():
    run(AUDIT)


def test_import_takes_less_than_one_and_a_half_times_torch():
    times = {"torch": [], "lbq": []}
    for _ in range(15):  # interleaved; the fastest of each, for as long as a neighbour disturbs
        for module, found in times.items():
            found.append(float(run(TIMING.format(module=module))))
        if min(times["lbq"]) < 1.5 * min(times["torch"]):
            return
    raise AssertionError(times)


def test_import_leaves_the_workshop_alone_until_a_pretrained_network_is_asked_for():
    run(
        "import sys, lbq; assert 'lbq.train' not in sys.modules; "
        "lbq.load_pretrained; assert 'lbq.train' in sys.modules"
    )


def test_dir_lists_the_public_names_and_packages_and_all_of_them_can_be_used():
    run(
        "import lbq; shown = [name for name in dir(lbq) if not name.startswith('_')]; "
        "assert set(lbq.__all__) | {'data', 'train', 'analysis', 'functional'} <= set(shown); "
        "assert not {'Any', 'TYPE_CHECKING', 'import_module', 'durable', 'types'} & set(shown); "
        "assert lbq.train.RECIPES and lbq.data.DataConfig; "
        "assert all(hasattr(lbq, name) for name in dir(lbq)); "
        "assert not hasattr(lbq, 'dat')"
    )
