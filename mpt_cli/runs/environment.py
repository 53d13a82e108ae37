"""What differs between two environments, as far as a result may depend on it."""

import re
from collections.abc import Mapping
from typing import Any

_EXPLAINING = ("mpt", "python", "versions", "backend", "jit_compile", "policy", "distribute", "devices", "seed",
               "dataset_fingerprint", "git", "variables", "packages")  # fmt: skip
_OF_THREADS = re.compile(r"OMP_NUM_THREADS|TF_NUM_\w+_THREADS")
_OF_THE_MACHINE = ("os", "cpu", "usable_cores", "cpu_precision_features", "gpus")


def environment_differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """A line for each fact that is another one now, those that explain most first.

    >>> environment_differences({"versions": {"keras": "3.12"}}, {"versions": {"keras": "3.15"}})
    ['versions.keras: 3.12 -> 3.15']
    """
    old, new = _facts(before), _facts(now)
    names = [name for name in dict.fromkeys([*old, *new]) if old.get(name) != new.get(name)]
    told = {name.split(".", 1)[1] for name in names if name.startswith("versions.")}
    names = [name for name in names if not (name.startswith("packages.") and name.split(".", 1)[1] in told)]
    return [f"{name}: {_words(old.get(name))} -> {_words(new.get(name))}" for name in names]


def thread_variables(environment: Mapping[str, Any]) -> dict[str, str]:
    """The variables that set how many threads a run had: one adds up in another order than several.

    >>> thread_variables({"variables": {"KERAS_BACKEND": "jax", "TF_NUM_INTRAOP_THREADS": "1"}})
    {'TF_NUM_INTRAOP_THREADS': '1'}
    """
    variables = environment.get("variables") or {}
    return {name: value for name, value in variables.items() if _OF_THREADS.fullmatch(name)}


def attempts_line(environment: Mapping[str, Any]) -> str | None:
    """Why config.yaml need not repeat a run that was resumed with other settings; None where it was not.

    >>> changed = {"changes": {"optimizer.learning_rate": [0.001, 0.01]}}
    >>> attempts_line({"attempts": [{"changes": {}}, changed]})  # doctest: +ELLIPSIS
    'it was trained in 2 attempts that differed in optimizer.learning_rate: config.yaml, ...
    """
    attempts = environment.get("attempts") or []
    keys = dict.fromkeys(key for attempt in attempts for key in attempt.get("changes") or {})
    if not keys:
        return None
    return (f"it was trained in {len(attempts)} attempts that differed in {', '.join(keys)}: config.yaml, which holds "
            "the last values, need not repeat it")  # fmt: skip


def environment_line(environment: Mapping[str, Any]) -> str:
    """Where a run ran, in one line."""
    versions = [f"{name} {version}" for name, version in environment.get("versions", {}).items()
                if name in ("tensorflow", "keras", "jax", "numpy")]  # fmt: skip
    machine = environment.get("machine", {})
    gpus = [gpu["name"] for gpu in machine.get("gpus", [])]
    return ", ".join([f"Python {environment.get('python')}", *versions, *gpus, str(machine.get("cpu"))])


def _facts(environment: Mapping[str, Any]) -> dict[str, Any]:
    machine = environment.get("machine") or {}
    facts = {name: environment[name] for name in _EXPLAINING if name in environment}
    return _flat({**facts, "machine": {name: machine[name] for name in _OF_THE_MACHINE if name in machine}})


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def _words(value: Any) -> str:
    if value is None:
        return "none"
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 40 else f"{text[:37]}…"
