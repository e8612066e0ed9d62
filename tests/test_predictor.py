import pickle

import numpy as np
import pytest
import torch
from bundles import tiny_network
from integer_networks import integer_network, random_bytes

import lbq
from lbq.errors import FormatError, LoweringError, ParameterError, ShapeError


@pytest.fixture
def bundle(tmp_path):
    lbq.save_network(tiny_network(), tmp_path / "net.lbq")
    return tmp_path / "net.lbq"


@pytest.fixture
def images():
    return np.random.default_rng(0).integers(0, 256, (7, 2, 5, 5), np.uint8)


def test_rows_keep_their_columns_and_get_the_integers_of_run_network(bundle, images):
    images.setflags(write=False)  # as in Ray's object store
    batch = {"id": np.arange(7), "pixels": images, "name": np.array(list("abcdefg"))}
    answer = lbq.Predictor(bundle, column="pixels", threads=2)(batch)
    expected = lbq.run_network(tiny_network(), torch.tensor(images), backend="dense").numpy()
    assert list(answer) == ["id", "name", "class", "logits"]
    assert answer["id"] is batch["id"]
    assert answer["logits"].dtype == np.int32
    assert np.array_equal(answer["logits"], expected)
    assert np.array_equal(answer["class"], expected.argmax(1))


@pytest.mark.parametrize("seed", range(12))
def test_samples_are_first_also_with_frames_sequences_and_several_outputs(seed, tmp_path):
    network = integer_network(seed)
    inputs = random_bytes(network, seed, batch=5)  # more than timesteps
    expected = lbq.run_network(network, inputs, backend="dense")
    lbq.save_network(network, tmp_path / "net.lbq")
    rows = inputs.swapaxes(0, 1) if network.takes_frames else inputs
    answer = lbq.Predictor(tmp_path / "net.lbq")({"image": rows.numpy()})
    outputs = expected if isinstance(expected, tuple) else (expected,)
    assert len(answer) == 2 * len(outputs)
    for i, output in enumerate(outputs):
        suffix = f"_{i}" if len(outputs) > 1 else ""
        is_sequence = len(output) != 5
        logits = output.swapaxes(0, 1) if is_sequence else output
        assert np.array_equal(answer[f"logits{suffix}"], logits.numpy())
        classes = logits.flatten(2 if is_sequence else 1).numpy().argmax(-1)
        assert np.array_equal(answer[f"class{suffix}"], classes)


def test_an_empty_batch_has_empty_columns(bundle, images):
    answer = lbq.Predictor(bundle)({"image": images[:0]})
    assert answer["class"].shape == (0,)
    assert answer["logits"].shape[0] == 0


def test_wrong_columns_are_named(bundle, images):
    predict = lbq.Predictor(bundle)
    with pytest.raises(ParameterError, match="no column 'image', only 'img', 'id'"):
        predict({"img": images, "id": np.arange(7)})
    with pytest.raises(ParameterError, match="already has the columns class"):
        predict({"image": images, "class": np.arange(7)})


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda images: images.astype(np.float32), r"float32 \[7, 2, 5, 5\]"),
        (lambda images: images.transpose(0, 2, 3, 1), r"uint8 \[7, 5, 5, 2\]"),
        (lambda images: images.reshape(7, -1), r"uint8 \[7, 50\]"),
        (lambda images: np.array([i.tobytes() for i in images], dtype=object), r"object \[7\]"),
    ],
)
def test_inputs_of_another_type_or_shape_are_refused(change, found, bundle, images):
    with pytest.raises(ShapeError, match=rf"must be uint8 \[B, 2, 5, 5\], got {found}"):
        lbq.Predictor(bundle)({"image": change(images)})


def test_only_the_bundle_that_was_meant_is_opened(bundle, tmp_path):
    with pytest.raises(FormatError):
        lbq.Predictor(bundle, sha256="0" * 64)
    lbq.save_network(tiny_network(is_integer=False), tmp_path / "real.lbq")
    with pytest.raises(LoweringError, match="to_fixed_point"):
        lbq.Predictor(tmp_path / "real.lbq")
    with pytest.raises(ParameterError, match="at least 1, got 0"):
        lbq.Predictor(bundle, threads=0)


def test_a_predictor_is_constructed_in_its_worker_and_not_sent_there(bundle):
    with pytest.raises(ParameterError, match="construct it in every worker"):
        pickle.dumps(lbq.Predictor(bundle))


def test_masked_values_are_no_data(bundle, images):
    predict = lbq.Predictor(bundle)
    masked = np.ma.masked_array(images, images > 200)
    with pytest.raises(ShapeError, match=r"column 'image' has \d+ masked values of 350"):
        predict({"image": masked})
    whole = predict({"image": np.ma.masked_array(images, np.zeros_like(images))})
    assert np.array_equal(whole["logits"], predict({"image": images})["logits"])


@pytest.mark.parametrize("column", [np.arange(9), np.arange(0), list("ab"), np.float32(3), 4])
def test_columns_of_another_length_are_refused_by_name(column, bundle, images):
    with pytest.raises(ShapeError, match=r"column 'id' has \w+ rows, and column 'image' has 7"):
        lbq.Predictor(bundle)({"id": column, "image": images})


@pytest.mark.parametrize("batch", [None, 3, [1, 2]])
def test_a_batch_that_is_no_dictionary_is_refused(batch, bundle):
    with pytest.raises(ParameterError, match="a batch is a dictionary of columns"):
        lbq.Predictor(bundle)(batch)


def test_lists_of_several_lengths_are_refused(bundle):
    with pytest.raises(ShapeError, match="must be uint8"):
        lbq.Predictor(bundle)({"image": [[1, 2], [3]]})


@pytest.mark.parametrize("threads", [1.5, 0, -1, True, "2", None, float("nan")])
def test_threads_are_a_whole_number(threads, bundle):
    with pytest.raises(ParameterError, match="threads must be a whole number of at least 1"):
        lbq.Predictor(bundle, threads=threads)
