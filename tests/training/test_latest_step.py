"""What a sample repeats of a step: the batch of Keras's own `fit`, from whatever data, and nobody sees it in the logs."""

import keras
import numpy as np
import pytest
from keras import ops

from mpt_cli.precision import LossScaleOptimizer
from mpt_cli.recorder_callback import Recorder
from mpt_cli.samples.latest_step import LatestStep

X = np.tile(np.float32([1.0, 2.0**-14, 2.0**-15, 0.0]), (12, 1))
Y = np.full((12, 1), 2.0**-10, "float32")


def product(y, prediction):
    """A loss whose gradient by weight j is `x[j] * y`: at scale 1 one is kept, one subnormal, one flushed, one 0."""
    return ops.mean(ops.cast(y, "float32") * ops.cast(prediction, "float32"))


def net():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, use_bias=False, dtype="mixed_float16")])


class Rows(keras.utils.PyDataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return X[index : index + 1], Y[index : index + 1]


def generated():
    while True:
        yield X[:1], Y[:1]


def dataset():
    tf = pytest.importorskip("tensorflow")
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(1)


class Seen(keras.callbacks.Callback):
    """Has the train function made anew, as a callback that thaws layers does."""

    def on_train_begin(self, logs=None):
        self.names = set()

    def on_epoch_begin(self, epoch, logs=None):
        self.model.make_train_function(force=True)

    def on_train_batch_end(self, batch, logs=None):
        self.names |= set(logs)


@pytest.mark.slow
@pytest.mark.parametrize("steps_per_execution", [1, 2])
@pytest.mark.parametrize("data", [Rows, generated, dataset, lambda: X])
def test_a_recorder_samples_the_latest_batch_of_any_data_and_no_log_has_it(data, steps_per_execution, tmp_path):
    model, seen = net(), Seen()
    is_jax = keras.backend.backend() == "jax"
    model.compile(keras.optimizers.SGD(0.0625), product, steps_per_execution=steps_per_execution, jit_compile=is_jax)
    recorder = Recorder(tmp_path / "run", loss_scale="none", settings={"logger.console": "quiet"})
    given, more = data(), {"steps_per_epoch": 12} if data is generated else {}
    more |= {"y": Y, "batch_size": 1} if given is X else {}
    model.fit(given, epochs=10, verbose=0, callbacks=[recorder, seen], **more)
    summary = recorder.run.summary
    assert (summary["applied_steps"], summary["skipped_steps"], seen.names) == (120, 0, {"loss"})
    if not is_jax:  # which samples no run as short
        assert (summary["gradients"]["flushed_share"], summary["gradients"]["subnormal_share"]) == (1 / 3, 1 / 3)
        assert recorder.run.verdict == "scale too low to matter"
    for optimizer in (LossScaleOptimizer(keras.optimizers.SGD(0.0625)), keras.optimizers.SGD(0.0625)):
        model.compile(optimizer, product)
        history = model.fit(X, Y, batch_size=4, verbose=0, callbacks=[seen]).history
        assert seen.names == set(history) == {"loss"}
        assert np.isfinite(history["loss"]).all()


def test_gradients_that_may_have_been_flushed_before_the_model_are_no_ground_for_a_verdict():
    near, far = np.float16([0.0, 2.0**-20, 1.0]), np.float16([0.0, 1.0, 1.0])
    cases = (([near], True), ([far], False), ([near.astype("float32")], False), ([np.float32([0.0, 0.0])], True))
    for gradients, hidden in cases:
        assert LatestStep(None, [(X, gradients, 1.0)], is_seeded=True).hides_flushed is hidden
    assert not LatestStep(None, (X, Y)).hides_flushed
