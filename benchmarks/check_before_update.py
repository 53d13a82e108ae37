"""The least that a check of all gradients before their update costs over many small variables.

    python -m benchmarks.check_before_update [--quick]

A loop of gradient descent over vectors of 16 numbers in JAX alone, with nothing of Keras or mpt in it: with a constant
scale and no check, where XLA makes one kernel of a vector's gradient and update, and where every update waits for the
answer whether all gradients are finite, which takes two. `stacked` asks each gradient, `packed` one array of them all.
Microseconds a step, the best of three; prints them and writes nothing. See `benchmarks.growth` for mpt's own step.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

CHECKS: dict[str, Callable[[list[Any]], Any]] = {
    "stacked": lambda grads: jnp.stack([jnp.isfinite(each).all() for each in grads]).all(),
    "packed": lambda grads: jnp.isfinite(jnp.concatenate(grads)).all(),
}


def loss(weights: list[Any], scale: Any) -> Any:
    return jnp.sum((sum(weights) / len(weights) - 0.3) ** 2) * scale


def step(check: Callable[[list[Any]], Any] | None, state: tuple[list[Any], Any], _: None) -> tuple[Any, None]:
    weights, scale = state
    grads = jax.grad(loss)(weights, scale)
    new = [weight - 0.1 * each / scale for weight, each in zip(weights, grads, strict=True)]
    if check is None:
        return (new, scale), None
    finite = check(grads)
    kept = [jnp.where(finite, after, before) for after, before in zip(new, weights, strict=True)]
    return (kept, jnp.where(finite, scale, scale / 2)), None


def microseconds(count: int, check: Callable[[list[Any]], Any] | None, steps: int) -> float:
    loop = jax.jit(lambda state: jax.lax.scan(partial(step, check), state, length=steps)[0])
    state = jax.block_until_ready(loop(([jnp.full((16,), i / count) for i in range(count)], jnp.float32(4))))
    times = []
    for _ in range(3):
        started = time.perf_counter()
        state = jax.block_until_ready(loop(state))
        times.append(time.perf_counter() - started)
    return min(times) / steps * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few variables and steps: shows that it works")
    quick = parser.parse_args().quick
    print("| variables | no check | " + " | ".join(f"{name}, over that" for name in CHECKS) + " |")
    print("| --- " * (2 + len(CHECKS)) + "|")
    for count in (10,) if quick else (100, 300, 1000):
        without, *others = (microseconds(count, check, 20 if quick else 2000) for check in (None, *CHECKS.values()))
        shares = " | ".join(f"{each / without:.2f}" for each in others)
        print(f"| {count} | {without:.1f} | {shares} |", flush=True)


if __name__ == "__main__":
    main()
