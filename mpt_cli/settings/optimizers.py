"""Keys of each Keras optimizer, by `optimizer.name`: the shared ones and its own, with Keras's names and defaults."""

from dataclasses import dataclass, field
from typing import List, Optional

from mpt_cli.settings.key import REQUIRED, key


@dataclass
class Schedule:
    """How the learning rate moves over applied steps; `optimizer.learning_rate` is where it starts (after warm-up).

    A step is a batch that was applied, also where gradient_accumulation_steps gathers several into one update.
    """

    name: str = key("constant", "shape of the schedule", choices=("constant", "cosine", "exponential", "piecewise"))
    warmup_steps: int = key(0, "applied steps of linear warm-up from 0 (constant and cosine)", at_least=0)
    decay_steps: Optional[int] = key(
        None, "cosine: steps of decay after warm-up, null = to the end of the planned epochs; "
        "exponential: steps per factor, must be given", at_least=1)
    final_factor: Optional[float] = key(None, "cosine: end value over learning_rate (Keras's alpha; null = 0)",
                                        at_least=0, at_most=1)
    decay_rate: Optional[float] = key(None, "exponential: factor per decay_steps, must be given", above=0)
    staircase: Optional[bool] = key(None, "exponential: in whole jumps instead of smoothly (null = false)")
    boundaries: Optional[List[int]] = key(
        None, "piecewise: applied steps, rising; as in Keras the step after a boundary is the last with the old value",
        at_least=1)
    values: Optional[List[float]] = key(
        None, "piecewise: the values as multiples of learning_rate, one more than boundaries", at_least=0)


@dataclass
class OptimizerSettings:
    """What every optimizer has. Clipping acts on unscaled gradients; all of it counts applied steps."""

    name: str = key(REQUIRED, "which optimizer; `mpt list optimizers` shows them")
    learning_rate: float = key(1e-3, "step size at the start of the schedule", at_least=0)
    schedule: Schedule = field(default_factory=Schedule)
    weight_decay: Optional[float] = key(None, "decoupled weight decay, null = none", at_least=0)
    clipnorm: Optional[float] = key(None, "clip each gradient to this norm", above=0)
    clipvalue: Optional[float] = key(None, "clip each gradient element to ±this", above=0)
    global_clipnorm: Optional[float] = key(None, "clip all gradients together to this norm", above=0)
    use_ema: bool = key(False, "keep an exponential moving average of the weights; it is what the run ends with")
    ema_momentum: float = key(0.99, "weight of the old average", at_least=0, at_most=1)
    ema_overwrite_frequency: Optional[int] = key(None, "applied steps between copies of the average into the weights, "
                                                 "null = at the end only", at_least=1)
    gradient_accumulation_steps: Optional[int] = key(None, "batches summed into one update, null = 1", at_least=2)


@dataclass
class SGD(OptimizerSettings):
    name: str = "sgd"
    learning_rate: float = key(0.01, "step size at the start of the schedule", at_least=0)
    momentum: float = key(0.0, "0 is plain gradient descent", at_least=0, at_most=1)
    nesterov: bool = key(False, "Nesterov momentum")


@dataclass
class RMSprop(OptimizerSettings):
    name: str = "rmsprop"
    rho: float = key(0.9, "weight of the old squared-gradient average", at_least=0, at_most=1)
    momentum: float = key(0.0, "momentum", at_least=0, at_most=1)
    epsilon: float = key(1e-7, "added to the denominator", above=0)
    centered: bool = key(False, "divide by the variance instead of the second moment")


@dataclass
class Adam(OptimizerSettings):
    name: str = "adam"
    beta_1: float = key(0.9, "decay of the first moment", at_least=0, below=1)
    beta_2: float = key(0.999, "decay of the second moment", at_least=0, below=1)
    epsilon: float = key(1e-7, "added to the denominator", above=0)
    amsgrad: bool = key(False, "the AMSGrad variant")


@dataclass
class AdamW(Adam):
    name: str = "adamw"
    weight_decay: float = key(0.004, "decoupled weight decay; adam is the one without", at_least=0)


@dataclass
class Adadelta(OptimizerSettings):
    name: str = "adadelta"
    rho: float = key(0.95, "decay of both averages", at_least=0, at_most=1)
    epsilon: float = key(1e-7, "added to the denominator", above=0)


@dataclass
class Adagrad(OptimizerSettings):
    name: str = "adagrad"
    initial_accumulator_value: float = key(0.1, "where the accumulators start", at_least=0)
    epsilon: float = key(1e-7, "added to the denominator", above=0)


@dataclass
class Adamax(OptimizerSettings):
    name: str = "adamax"
    beta_1: float = key(0.9, "decay of the first moment", at_least=0, below=1)
    beta_2: float = key(0.999, "decay of the infinity norm", at_least=0, below=1)
    epsilon: float = key(1e-7, "added to the denominator", above=0)


@dataclass
class Adafactor(OptimizerSettings):
    name: str = "adafactor"
    beta_2_decay: float = key(-0.8, "exponent of the second moment's decay", below=0)
    epsilon_1: float = key(1e-30, "added to squared gradients", above=0)
    epsilon_2: float = key(1e-3, "smallest parameter scale", above=0)
    clip_threshold: float = key(1.0, "clipping of the update", above=0)
    relative_step: bool = key(True, "step size falls with the step count, bounded by learning_rate")


@dataclass
class Nadam(OptimizerSettings):
    name: str = "nadam"
    beta_1: float = key(0.9, "decay of the first moment", at_least=0, below=1)
    beta_2: float = key(0.999, "decay of the second moment", at_least=0, below=1)
    epsilon: float = key(1e-7, "added to the denominator", above=0)


@dataclass
class Ftrl(OptimizerSettings):
    name: str = "ftrl"
    learning_rate_power: float = key(-0.5, "how the rate falls in training, 0 = fixed", at_most=0)
    initial_accumulator_value: float = key(0.1, "where the accumulators start", at_least=0)
    l1_regularization_strength: float = key(0.0, "L1 strength", at_least=0)
    l2_regularization_strength: float = key(0.0, "L2 strength", at_least=0)
    l2_shrinkage_regularization_strength: float = key(0.0, "L2 shrinkage strength", at_least=0)
    beta: float = key(0.0, "beta of the paper", at_least=0)


@dataclass
class Lion(OptimizerSettings):
    name: str = "lion"
    beta_1: float = key(0.9, "mix of momentum and gradient in the update", above=0, at_most=1)
    beta_2: float = key(0.99, "decay of the momentum", at_least=0, below=1)


@dataclass
class Lamb(OptimizerSettings):
    name: str = "lamb"
    beta_1: float = key(0.9, "decay of the first moment", at_least=0, below=1)
    beta_2: float = key(0.999, "decay of the second moment", at_least=0, below=1)
    epsilon: float = key(1e-7, "added to the denominator", above=0)


@dataclass
class Muon(OptimizerSettings):
    name: str = "muon"
    weight_decay: Optional[float] = key(0.004, "decoupled weight decay of matrices, null = none", at_least=0)
    adam_beta_1: float = key(0.9, "decay of the first moment (variables that use Adam)", at_least=0, below=1)
    adam_beta_2: float = key(0.999, "decay of the second moment (variables that use Adam)", at_least=0, below=1)
    adam_weight_decay: Optional[float] = key(0.004, "decoupled weight decay of variables that use Adam, null = none",
                                             at_least=0)
    adam_lr_ratio: float = key(1.0, "learning rate of variables that use Adam over learning_rate", at_least=0)
    epsilon: float = key(1e-7, "added to the denominator", above=0)
    exclude_layers: Optional[List[str]] = key(
        None, "variables whose path matches one of these patterns use Adam; [head] is advised for Muon")
    exclude_embeddings: bool = key(True, "embeddings use Adam; so does all that isn't a matrix")
    muon_a: float = key(3.4445, "first coefficient of the Newton-Schulz polynomial")
    muon_b: float = key(-4.775, "second coefficient of the Newton-Schulz polynomial")
    muon_c: float = key(2.0315, "third coefficient of the Newton-Schulz polynomial")
    momentum: float = key(0.95, "momentum", at_least=0, at_most=1)
    ns_steps: int = key(5, "Newton-Schulz iterations", at_least=1)
    nesterov: bool = key(True, "Nesterov momentum")
    rms_rate: Optional[float] = key(0.2, "scale of the update that lets Muon share Adam's learning rate, null = off",
                                    above=0)


@dataclass
class ScheduleFreeAdamW(OptimizerSettings):
    name: str = "schedule_free_adamw"
    learning_rate: float = key(0.0025, "step size at the start of the schedule", at_least=0)
    beta_1: float = key(0.9, "weight of the average in the point where gradients are taken", above=0, below=1)
    beta_2: float = key(0.999, "decay of the second moment", at_least=0, below=1)
    epsilon: float = key(1e-8, "added to the denominator", above=0)
    warmup_steps: int = key(0, "updates of linear warm-up of its own; leave schedule.warmup_steps at 0 then",
                            at_least=0)


OPTIMIZERS = {
    "sgd": SGD, "rmsprop": RMSprop, "adam": Adam, "adamw": AdamW, "adadelta": Adadelta, "adagrad": Adagrad,
    "adamax": Adamax, "adafactor": Adafactor, "nadam": Nadam, "ftrl": Ftrl, "lion": Lion, "lamb": Lamb, "muon": Muon,
    "schedule_free_adamw": ScheduleFreeAdamW,
}
