import io

from lbq.cli import following
from lbq.cli.following import counting, follow, waiting
from lbq.cli.terminal import Console


def console(*, is_terminal):
    return Console(file=io.StringIO(), force_terminal=is_terminal, width=100)


def test_a_bar_moves_in_a_terminal_and_every_item_passes():
    shown = console(is_terminal=True)
    assert list(follow(range(3), total=3, what="batches", console=shown)) == [0, 1, 2]
    assert "batches" in shown.file.getvalue()


def test_a_short_loop_is_silent_without_a_terminal_and_a_long_one_is_not(monkeypatch):
    shown = console(is_terminal=False)
    list(follow(range(3), total=3, what="batches", console=shown))
    assert shown.file.getvalue() == ""
    clock = iter(range(0, 1000, 6))
    monkeypatch.setattr(following.time, "monotonic", lambda: float(next(clock)))
    list(follow(range(5), total=5, what="batches", console=shown))
    assert "batches: 2 of 5\n" in shown.file.getvalue()


def test_what_is_counted_elsewhere_is_shown_like_a_loop(monkeypatch):
    shown = console(is_terminal=True)
    with counting("samples", shown) as tell:
        tell(30, 40)
    assert "30/40" in shown.file.getvalue()
    clock = iter(range(0, 1000, 6))
    monkeypatch.setattr(following.time, "monotonic", lambda: float(next(clock)))
    shown = console(is_terminal=False)
    with counting("samples", shown) as tell:
        for done in range(1, 5):
            tell(done, 4)
    assert shown.file.getvalue() == "samples: 2 of 4\n"


def test_waiting_says_what_for():
    for is_terminal in (True, False):
        shown = console(is_terminal=is_terminal)
        with waiting("writing net.onnx", shown):
            pass
        assert "writing net.onnx" in shown.file.getvalue()
