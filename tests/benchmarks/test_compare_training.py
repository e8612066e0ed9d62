"""What ``compare_training`` concludes, and that it goes on behind its last finished run."""

import json

import pytest
import torch
from compare_training import Data, Settings, compare, finish, first_difference

SETTINGS = Settings(steps=3, train_images=40, test_images=20, channels=(4,))


def draw_data():
    generator = torch.Generator().manual_seed(0)

    def draw(count):
        return (
            torch.randn(count, 3, 16, 16, generator=generator),
            torch.randint(10, (count,), generator=generator),
        )

    return Data(draw(SETTINGS.train_images), draw(SETTINGS.test_images))


def train(path, implementation="plain", seed=0):
    return finish(path, draw_data(), SETTINGS, implementation=implementation, seed=seed)


def test_the_first_difference_is_relative_to_the_larger_loss():
    losses = [2.0, 1.0, 0.5, 0.25]
    assert first_difference(losses, losses, 0.0) is None
    assert first_difference(losses, [2.0, 1.0, 0.6, 0.5], 0.1) == 2
    assert first_difference(losses, [2.0, 1.0, 0.6, 0.5], 0.2) == 3
    assert first_difference([0.6, 0.5], [0.5, 0.25], 0.2) == 1
    with pytest.raises(ValueError, match="shorter"):
        first_difference(losses, losses[:2], 0.1)


def test_the_rule_allows_two_pooled_standard_deviations():
    plain = [0.60, 0.62, 0.64]  # standard deviation 0.02
    assert compare([a + 0.039 for a in plain], plain)["agrees"]
    assert compare([a - 0.039 for a in plain], plain)["agrees"]
    assert not compare([a + 0.041 for a in plain], plain)["agrees"]
    wide = compare([0.50, 0.62, 0.74], plain)  # 0.12: pooled with 0.02 by their squares
    assert wide["pooled_standard_deviation"] == pytest.approx(((0.12**2 + 0.02**2) / 2) ** 0.5)


def test_a_finished_run_is_read_and_not_trained_again(tmp_path):
    path = tmp_path / "run.json"
    run = train(path)
    written = json.loads(path.read_text()) | {"test_accuracy": 0.123}
    path.write_text(json.dumps(written))
    assert train(path)["test_accuracy"] == 0.123
    assert train(tmp_path / "again.json") == run


def test_a_run_made_with_other_settings_is_refused(tmp_path):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(train(tmp_path / "other.json") | {"settings": {"steps": 7}}))
    with pytest.raises(SystemExit, match=r"'steps': 7.*another folder"):
        train(path)


def test_runs_of_one_seed_differ_between_seeds_only(tmp_path):
    plain, reference, other = (
        train(tmp_path / f"{name}{seed}.json", name, seed)
        for name, seed in (("plain", 0), ("reference", 0), ("plain", 1))
    )
    assert first_difference(plain["losses"], reference["losses"], 1e-5) is None
    assert first_difference(plain["losses"], other["losses"], 1e-5) == 0
