"""Importing the library costs little and touches nothing."""

import subprocess
import sys

AUDIT = """
import sys
seen = []
FORBIDDEN = ("socket.", "subprocess.Popen", "os.system", "os.fork", "os.exec", "os.posix_spawn",
             "_thread.start_new_thread")
import torch  # only what lbq adds is audited
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


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_opens_no_socket_and_starts_no_process_or_thread():
    run(AUDIT)


def test_what_is_slow_to_import_is_imported_on_first_use():
    lazy = "{'lbq.train', 'lbq.cli', 'torch.fx', 'torch.export', 'onnx', 'datasets', 'PIL', 'rich'}"
    run(
        f"import sys, torch; before = set(sys.modules); import lbq; "
        f"assert not {lazy} & (set(sys.modules) - before); "
        f"lbq.load_pretrained; assert 'lbq.train' in sys.modules"
    )


def test_dir_lists_the_public_names_and_packages_and_all_of_them_can_be_used():
    run(
        "import lbq; shown = [name for name in dir(lbq) if not name.startswith('_')]; "
        "assert set(lbq.__all__) | {'data', 'train', 'analysis', 'functional'} <= set(shown); "
        "assert not {'Any', 'TYPE_CHECKING', 'import_module', 'types'} & set(shown); "
        "assert lbq.train.RECIPES and lbq.data.DataConfig; "
        "assert all(hasattr(lbq, name) for name in dir(lbq)); "
        "assert not hasattr(lbq, 'dat')"
    )
