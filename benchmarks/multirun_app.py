"""The jobs of `benchmarks.sweep` as a program with Hydra's decorator and Keras's own `fit`: digits_mlp, its record by
callbacks, its model saved.

    python benchmarks/multirun_app.py --multirun seed=0,1 backend=jax hydra/launcher=joblib hydra.launcher.n_jobs=2
"""

import json
import os
from pathlib import Path

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

DEFAULTS = {"seed": 0, "backend": "tensorflow", "epochs": 1, "batch_size": 64, "learning_rate": 1e-3,
            "hidden_units": [512, 512], "policy": "mixed_float16"}  # fmt: skip
ConfigStore.instance().store(name="digits_mlp", node=DEFAULTS)


@hydra.main(version_base="1.3", config_path=None, config_name="digits_mlp")
def job(config: DictConfig) -> None:
    os.environ["KERAS_BACKEND"] = config.backend
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import keras
    from keras import layers
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    keras.utils.set_random_seed(config.seed)
    keras.config.set_dtype_policy(config.policy)
    x, y = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(x / 16, y, test_size=0.2, random_state=config.seed)
    hidden = [layers.Dense(units, "relu") for units in config.hidden_units]
    model = keras.Sequential([keras.Input((64,)), *hidden, layers.Dense(10, dtype="float32")])
    model.compile(keras.optimizers.Adam(config.learning_rate),
                  keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])  # fmt: skip
    place = Path(HydraConfig.get().runtime.output_dir)
    recorded = keras.callbacks.CSVLogger(str(place / "metrics.csv"))
    fitted = model.fit(train_x, train_y, batch_size=config.batch_size, epochs=config.epochs, verbose=0,
                       validation_data=(test_x, test_y), callbacks=[recorded])  # fmt: skip
    model.save(place / "model.keras")
    last = {name: values[-1] for name, values in fitted.history.items()}
    (place / "summary.json").write_text(json.dumps({"steps": int(model.optimizer.iterations), "metrics": last}))


if __name__ == "__main__":
    job()
