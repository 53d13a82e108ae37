"""What has no public name in JAX: all that may break with another version of it stands here, each part with a test."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax


def jax_attention() -> Any:
    """Return JAX's own attention."""
    present: Any = jax.nn.dot_product_attention
    return getattr(present, "original", present)


def replace_attention(on_cpu: bool) -> None:
    """Let JAX's attention take float16 on a CPU, where JAX refuses its products; elsewhere it is JAX's own.

    float16 queries, keys and values are computed with in float32; what comes out is rounded to float16, and so are the
    gradients. For the whole process: Keras's layers look it up there.
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
    """Let JAX act as if a GPU were here while a program is traced for it.

    Keras asks `jax._src` whether a GPU can compute cuDNN's attention, and without an answer traces the products and the
    softmax in its place, which take far more memory. There is no public way to say which device is traced for.
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
    """Return the rank of this process and how many there are, as `jax.distributed.initialize` finds them in a cluster;
    None outside of one. JAX says them only once all have met."""
    from jax._src.clusters import ClusterEnv

    kinds = (kind for kind in ClusterEnv._cluster_types if not kind.opt_in_only_method)
    found = next((kind for kind in kinds if kind.is_env_present()), None)
    return None if found is None else (found.get_process_id(), found.get_process_count())
