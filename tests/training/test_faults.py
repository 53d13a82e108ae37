import numpy as np
import pytest
from backends import BACKEND
from tiny import TinyRun, tiny_data, tiny_model, tiny_run

from mpt_cli.data.examples import DataSet, Examples
from mpt_cli.engine.faults import build_injector, warn_of_fault
from mpt_cli.errors import ConfigError
from mpt_cli.precision import DynamicScale, FixedScale
from mpt_cli.settings.load import load_settings
from mpt_cli.settings.schema import FaultSettings
from mpt_cli.training.checkpoint import collect_state


def data_set(x: Examples, dtype: str = "float32"):
    return DataSet(
        train=x, validation=None, input_shape=(4,), input_dtypes=dtype, num_classes=3, fingerprint="", description=""
    )


def faulty_run(fault: FaultSettings, rule=None, steps: int = 12):
    data, model = tiny_data(steps * 4), tiny_model()
    injector = build_injector(fault, model, data_set(data))
    wrap = injector.wrap_step if injector else None
    return tiny_run(data, model=model, rule=rule or FixedScale(2.0**10), wrap_step=wrap)


def bad_steps(run: TinyRun):
    finite = np.concatenate([block.finite for block in run.epochs(1)])
    return (np.flatnonzero(~finite) + 1).tolist()


@pytest.mark.slow
def test_happens_in_the_steps_that_were_asked_for_and_not_in_evaluation():
    assert bad_steps(faulty_run(FaultSettings("nan", "data", [1], every_steps=4))) == [1, 4, 8, 12]
    run = faulty_run(FaultSettings("nan", "forward", every_steps=5))
    assert bad_steps(run) == [5, 10]
    run.engine.reset_metrics()
    run.feed.start(1)
    chunk = run.feed.take(4)
    run.engine.evaluate(chunk.source, chunk.batch_indices, chunk.count)
    assert np.isfinite(run.engine.metrics()["loss"])


@pytest.mark.slow
def test_an_overflow_can_depend_on_the_scale():
    run = faulty_run(FaultSettings("overflow", every_steps=1, above_scale=8), rule=DynamicScale(64.0, growth_steps=4))
    assert bad_steps(run) == [1, 2, 3, 8]  # down to 8 in three steps; after four applied ones 16 is tried again


@pytest.mark.slow
def test_the_other_steps_are_as_they_would_have_been():
    """Bit for bit on TensorFlow; XLA on JAX fuses the step another way, so that a few roundings differ."""
    clean, faulty = faulty_run(FaultSettings(), steps=4), faulty_run(FaultSettings("nan", at_steps=[1000]), steps=4)
    clean.epochs(1), faulty.epochs(1)
    tolerance = 1e-5 if BACKEND == "jax" else 0
    other = collect_state(faulty.model)
    for name, value in collect_state(clean.model).items():
        np.testing.assert_allclose(value, other[name], rtol=tolerance, atol=tolerance, err_msg=name)


def test_tokens_cannot_hold_nan():
    with pytest.raises(ConfigError, match=r"fault\.place: must not be data with inputs in int32.*=forward"):
        build_injector(FaultSettings("nan", "data", [1]), tiny_model(), data_set(tiny_data(), "int32"))


def test_a_rehearsal_says_so_loudly():
    assert warn_of_fault(FaultSettings()) == []
    (warning,) = warn_of_fault(FaultSettings("nan", "data", [3, 5]))
    assert "THIS IS A REHEARSAL" in warning and "(data). fault=none ends it" in warning


def test_a_fault_that_makes_no_sense_is_refused():
    for words, problem in (
        (["fault.kind=nan"], "fault.at_steps: must be given with fault.kind=nan, or fault.every_steps"),
        (["fault.at_steps=[1]"], "fault.at_steps: must be left out with fault.kind=none"),
        (["fault.kind=zero", "fault.place=data", "fault.at_steps=[1]"], "fault.place: must be backward or forward"),
    ):
        with pytest.raises(ConfigError) as caught:
            load_settings(["conf=digits_mlp", *words])
        assert problem in str(caught.value)
