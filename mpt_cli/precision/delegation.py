"""What a wrapper shows of the optimizer inside it: reads pass through, writes reach it or raise."""

from typing import Any

INNER_ARGUMENTS = (
    "weight_decay", "clipnorm", "clipvalue", "global_clipnorm", "use_ema", "ema_momentum", "ema_overwrite_frequency",
    "gradient_accumulation_steps",
)  # fmt: skip


class InnerDelegation:
    """Mixin for a Keras optimizer that holds another one in `inner_optimizer`.

    Keras's own wrapper keeps the base attributes twice, so that `wrapper.clipnorm = 1.0` changes nothing. Here each of
    them is the inner optimizer's. A public name that neither of the two has can't be set by mistake.
    """

    inner_optimizer: Any

    @property
    def learning_rate(self) -> Any:
        """The inner optimizer's current learning rate, a float32 scalar."""
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self.inner_optimizer.learning_rate = value

    lr = learning_rate

    @property
    def loss_scale_factor(self) -> None:
        """None: the inner optimizer's own scaling is off. ValueError for any other value."""
        return None

    @loss_scale_factor.setter
    def loss_scale_factor(self, value: float | None) -> None:
        if value is not None:
            raise ValueError("`loss_scale_factor` can't be set: gradients would be divided twice. Received: "
                             f"loss_scale_factor={value}. For a fixed scale give dynamic=False and initial_scale.")

    @property
    def iterations(self) -> Any:
        """The inner optimizer's count of updates, which schedules follow; `count_skipped_steps` says of which."""
        return self.inner_optimizer.iterations

    def set_weights(self, weights: list[Any]) -> None:
        """Set the inner optimizer's variables, in the order of `inner_optimizer.variables`."""
        self.inner_optimizer.set_weights(weights)

    def exclude_from_weight_decay(self, var_list: Any = None, var_names: Any = None) -> None:
        """Tell the inner optimizer which variables not to decay."""
        self.inner_optimizer.exclude_from_weight_decay(var_list=var_list, var_names=var_names)

    def finalize_variable_values(self, var_list: list[Any]) -> None:
        """Put the inner optimizer's moving averages into the variables, where it keeps any."""
        self.inner_optimizer.finalize_variable_values(var_list)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "inner_optimizer":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.inner_optimizer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        inner = self.__dict__.get("inner_optimizer")
        known = name.startswith("_") or inner is None or name in self.__dict__ or hasattr(type(self), name)
        if known:
            super().__setattr__(name, value)
        elif hasattr(inner, name):
            setattr(inner, name, value)
        else:
            raise AttributeError(
                f"Neither {type(self).__name__} nor its inner {type(inner).__name__} has an attribute {name!r} to set."
            )


def _inner_property(name: str) -> property:
    def read(self: InnerDelegation) -> Any:
        return getattr(self.inner_optimizer, name)

    def write(self: InnerDelegation, value: Any) -> None:
        if "inner_optimizer" in self.__dict__:  # before that, the base class is only setting its own defaults
            setattr(self.inner_optimizer, name, value)

    return property(read, write, doc=f"`{name}` of the inner optimizer.")


for _name in INNER_ARGUMENTS:
    setattr(InnerDelegation, _name, _inner_property(_name))
