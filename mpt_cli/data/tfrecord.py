"""TFRecord files of tf.train.Example with one input and one target feature of fixed length."""

from typing import Any

from mpt_cli.data.assemble import Raw, build_data_set
from mpt_cli.data.examples import DataSet, Examples, Stream
from mpt_cli.data.files import matching_files
from mpt_cli.data.streams import RawStream, build_stream_set
from mpt_cli.data.tf_data import Source, open_stream, read_dataset
from mpt_cli.errors import DataError
from mpt_cli.settings.data import TFRecord
from mpt_cli.settings.suggest import did_you_mean


def load_tfrecord(settings: TFRecord, seed: int) -> DataSet:
    """Arrays, or of large files a stream, whose validation examples are then taken at even distances.

    uint8 inputs are bytes features (divided by 255), the others float or int64 lists. DataError without TensorFlow.
    """
    try:
        import tensorflow as tf
    except ImportError as error:
        raise DataError("data.name=tfrecord needs TensorFlow. Install it (pip install tensorflow), or convert the "
                        "files to .npz.") from error
    title = f"TFRecord {settings.path}"
    records = tf.data.TFRecordDataset([str(file) for file in matching_files(settings.path)])
    dataset = records.map(_parser(settings, _outputs(records, settings, title)),
                          num_parallel_calls=tf.data.AUTOTUNE)
    task = "regression" if settings.num_classes is None else "classification"
    found = read_dataset(Source(dataset, False, title))
    if isinstance(found, Examples):
        return build_data_set(Raw(title, found, None, task, settings.num_classes), settings, seed)
    train, validation = _split(dataset, settings, title)
    return build_stream_set(RawStream(title, train, validation, task, settings.num_classes))


def _outputs(records: Any, settings: TFRecord, title: str) -> tuple[str, int]:
    """Kind ("float_list" or "int64_list") and length of the target, read off the first record."""
    import tensorflow as tf

    try:
        first = next(iter(records.take(1).as_numpy_iterator()), None)
        example = None if first is None else tf.train.Example.FromString(first)
    except Exception as error:  # DataLossError, or protobuf's DecodeError, which has no public name
        raise DataError(f"{title} is damaged or no TFRecord of tf.train.Example: {str(error).splitlines()[0]}"
                        ) from error
    if example is None:
        raise DataError(f"{title}: there are no records.")
    features = example.features.feature
    for key, name in (("data.x", settings.x), ("data.y", settings.y)):
        if name not in features:
            raise DataError(f"{key}: records have no feature {name!r}. They have: {', '.join(sorted(features))}. "
                            f"{did_you_mean(name, features)}".rstrip())
    kind = features[settings.y].WhichOneof("kind")
    if kind not in ("float_list", "int64_list"):
        raise DataError(f"data.y: the feature {settings.y!r} must hold numbers. Received: {kind}.")
    return kind, len(getattr(features[settings.y], kind).value)


def _parser(settings: TFRecord, outputs: tuple[str, int]) -> Any:
    import tensorflow as tf

    kind, length = outputs
    shape = list(settings.input_shape)
    pixels = settings.dtype == "uint8"
    scalar = settings.num_classes is not None and length == 1
    features = {
        settings.x: tf.io.FixedLenFeature([], tf.string) if pixels else tf.io.FixedLenFeature(shape, settings.dtype),
        settings.y: tf.io.FixedLenFeature([] if scalar else [length],
                                          tf.float32 if kind == "float_list" else tf.int64),
    }

    def parse(record: Any) -> tuple[Any, Any]:
        values = tf.io.parse_single_example(record, features)
        x = values[settings.x]
        return tf.reshape(tf.io.decode_raw(x, tf.uint8), shape) if pixels else x, values[settings.y]

    return parse


def _split(dataset: Any, settings: TFRecord, title: str) -> tuple[Stream, Stream | None]:
    """Of each 1000 examples the share that `validation_fraction` says, evenly spread: no need to know how many."""
    fraction = settings.validation_fraction
    taken = dataset if settings.limit is None else dataset.take(settings.limit)
    if fraction == 0:
        return open_stream(Source(taken, False, title), None), None
    share = max(1, round(fraction * 1000))

    def part(held_out: bool) -> Stream:
        def belongs(place: Any, _: Any) -> Any:
            return (((place + 1) * share) // 1000 > (place * share) // 1000) == held_out

        rows = taken.enumerate().filter(belongs).map(lambda _, element: element)
        return open_stream(Source(rows, False, title), None)

    return part(False), part(True)
