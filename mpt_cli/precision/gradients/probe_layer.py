"""The probe as a layer that measures during a plain `fit`."""

import keras

from mpt_cli.precision.gradients.probing import SINK_SIZE, probe
from mpt_cli.precision.gradients.tensors import Tensor


@keras.saving.register_keras_serializable(package="mpt")
class GradientProbe(keras.layers.Layer):  # type: ignore[misc]
    """Identity on one tensor; after each applied step `statistics` holds the counts of the gradient through it.

    The sink is a trainable variable with `overwrite_with_gradient`, so any Keras optimizer, wrapped in loss scaling or
    not, assigns it its "gradient" (the layout is that of `probe`) before clipping, decay and slots come into play.
    The layer keeps the dtype of its input whatever its policy, and the weights of the model train bit for bit as
    without it. A layer called several times in a model counts all its calls, and the replicas' counts are added,
    under TensorFlow's `MirroredStrategy` and JAX's `DataParallel` alike.

    Limits, all from where the overwrite happens:
    - a skipped step drops it along with everything else: `statistics` then stays that of the last applied step. To see
      the gradients of an overflow, differentiate by `sink` yourself, as with `probe`;
    - with gradient accumulation Keras keeps the largest count of each slot, not the sum.

    Example:
        >>> model = keras.Sequential([keras.layers.Dense(1), GradientProbe(name="head_gradient")])
        >>> model.compile("sgd", "mse")
        >>> _ = model.fit(keras.ops.ones((8, 2)), keras.ops.ones((8, 1)), batch_size=4, verbose=0)
        >>> float(model.get_layer("head_gradient").statistics.sum())
        4.0
    """

    def __init__(self, **kwargs: object) -> None:
        super().__init__(**{"autocast": False, **kwargs})
        self.sink = self.add_weight(
            name="sink",
            shape=(SINK_SIZE,),
            initializer="zeros",
            dtype="float32",
            autocast=False,
            overwrite_with_gradient=True,
            aggregation="sum",  # of the replicas' assignments; without it the counts of one replica are kept
        )

    @property
    def statistics(self) -> Tensor:
        """The counts as a numpy vector; zeros before the first step."""
        return keras.ops.convert_to_numpy(self.sink.value)

    def call(self, inputs: Tensor) -> Tensor:
        return probe(inputs, self.sink)

    def compute_output_spec(self, inputs: keras.KerasTensor) -> keras.KerasTensor:
        # a new tensor: the input itself would drop this layer out of a functional model
        return keras.KerasTensor(inputs.shape, dtype=inputs.dtype)
