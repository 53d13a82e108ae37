"""What has no public name in JAX: all that may break with another version of it stands here, each part with a test."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax


@contextmanager
def answering_for_gpu(has_capability: Callable[[str], bool]) -> Iterator[None]:
    """Let JAX act as if a GPU were here while a program is traced for it.

    Keras asks `jax._src` whether a GPU can compute cuDNN's attention, and without an answer traces the products and the
    softmax in its place, which take far more memory. There is no public way to say which device is traced for.
    """
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    attention: Any = jax.nn.dot_product_attention
    answers: list[tuple[Any, str, Any]] = [
        (jax.nn, "dot_product_attention", getattr(attention, "original", attention)),  # not what stands in on CPUs
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
