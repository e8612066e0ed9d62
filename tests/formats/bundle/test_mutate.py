"""A thousand damaged and hostile bundles; ``mutate.py --count`` makes more."""

import importlib.util
from pathlib import Path


def test_a_mutant_is_refused_with_our_error_or_runs():
    spec = importlib.util.spec_from_file_location("mutate", Path(__file__).with_name("mutate.py"))
    mutate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mutate)
    outcomes, _ = mutate.mutants(1000, seed=5)
    assert sum(outcomes.values()) == 1000
    assert sum(count for name, count in outcomes.items() if name.endswith("ran")) > 20
    assert not any(name.startswith(("flip: ran", "cut: ran", "splice: ran")) for name in outcomes)
