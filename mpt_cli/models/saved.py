"""`model.name: saved`: a .keras file whose weights are trained further."""

from pathlib import Path

import keras

from mpt_cli.errors import DataError
from mpt_cli.models.fit import check_fit, plain_message
from mpt_cli.models.keras_file import damage_of
from mpt_cli.models.shapes import Shapes
from mpt_cli.settings.models import Saved


def load_saved_model(settings: Saved, shapes: Shapes) -> keras.Model:
    """The model as it was saved: its layers keep the dtype policies in the file, whatever `policy.name` says."""
    path = Path(settings.path)
    if not path.is_file():
        raise DataError(f"model.path: there is no such file. Received: {settings.path!r}.")
    damage = damage_of(path) if path.suffix == ".keras" else None  # of which Keras says that it is not found
    if damage is not None:
        raise DataError(f"model.path: {settings.path!r} is damaged: {damage}.")
    try:
        model = keras.models.load_model(settings.path, compile=False)
    except Exception as error:  # zip, JSON, HDF5 and missing user classes all raise their own
        message = f"model.path: {settings.path!r} can't be read as a Keras model: {plain_message(error)}"
        raise DataError(message) from error
    return check_fit(model, shapes, "model.path")
