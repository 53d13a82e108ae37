"""The parts of JAX without a public name that mpt needs: all that another version may break, each with a test."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax


def jax_attention() -> Any:
    """Return JAX's own attention."""
    present: Any = jax.nn.dot_product_attention
    return getattr(present, "original", present)


def replace_attention(on_cpu: bool) -> None:
    """Make JAX's attention accept float16 on a CPU, where JAX refuses its products; elsewhere it is unchanged.

    float16 queries, keys and values are computed in float32; the result and the gradients are rounded to float16. It
    holds for the whole process, because Keras's layers look it up in JAX.
    """
    original = jax_attention()

    def attention(query: Any, key: Any, value: Any, *more: Any, **named: Any) -> Any:
        if query.dtype != "float16":
            return original(query, key, value, *more, **named)
        wide = [part.astype("float32") for part in (query, key, value)]
        return original(*wide, *more, **named).astype("float16")

    attention.original = original  # type: ignore[attr-defined]
    jax.nn.dot_product_attention = attention if on_cpu else original


@contextmanager
def answering_for_gpu(has_capability: Callable[[str], bool]) -> Iterator[None]:
    """Make JAX report a GPU while a program is traced for one.

    Keras asks `jax._src` whether a GPU can compute cuDNN's attention, and otherwise traces the products and the softmax
    instead, which take far more memory. There is no public way to say for which device a program is traced.
    """
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    answers: list[tuple[Any, str, Any]] = [
        (jax.nn, "dot_product_attention", jax_attention()),  # not what stands in on CPUs
        (jax, "default_backend", lambda: "gpu"),
        (cudnn, "check_compute_capability", has_capability),
    ]
    before = [getattr(owner, name) for owner, name, _ in answers]
    for owner, name, answer in answers:
        setattr(owner, name, answer)
    try:
        yield
    finally:
        for (owner, name, _), its in zip(answers, before, strict=True):
            setattr(owner, name, its)


def detected_process() -> tuple[int, int] | None:
    """Return the rank of this process and the number of processes, as `jax.distributed.initialize` finds them in a
    cluster; None outside of one. JAX itself reports them only once all processes are connected."""
    from jax._src.clusters import ClusterEnv

    kinds = (kind for kind in ClusterEnv._cluster_types if not kind.opt_in_only_method)
    found = next((kind for kind in kinds if kind.is_env_present()), None)
    return None if found is None else (found.get_process_id(), found.get_process_count())
