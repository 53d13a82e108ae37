"""Every key of the schema: what is legal comes back from YAML and keeps the JSON Schema; what is not is one problem."""

import math
import string
from functools import reduce
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from mpt_cli.settings.json_schema import json_schema
from mpt_cli.settings.key_type import (
    LARGEST_COUNT,
    BadValue,
    Key,
    class_keys,
    format_range,
    format_type,
    read_value,
)
from mpt_cli.settings.schema import VARIANTS, all_keys, choosing_key, key_versions

OF_THE_HOST = ("seed",)  # never on a device as they are, so that they may be larger
TEXTS = st.text(string.printable[:95].replace("$", "") + "äß€", min_size=1, max_size=9).map("a{}".format)
VALIDATOR = jsonschema.Draft202012Validator(json_schema())
ENDS = {"above", "at_least"}, {"below", "at_most"}
ROUNDS = range(max(map(len, VARIANTS.values())))
EXAMPLES = settings(max_examples=2, deadline=None, suppress_health_check=[*HealthCheck], phases=[Phase.generate])


def keys_of(number: int):
    """Of each section a variant, with its keys and those that no variant decides; over all rounds each variant."""
    chosen = {section: [*variants][number % len(variants)] for section, variants in VARIANTS.items()}
    keys = [key for path, key in all_keys().items() if path.partition(".")[0] not in VARIANTS]
    keys += [key for section, name in chosen.items() for key in class_keys(VARIANTS[section][name], section)]
    named = {f"{section}.{choosing_key(section)}": name for section, name in chosen.items()}
    is_left = {*named, "vars", "expect"}  # and what names objects is read by `checks`, sections by their keys
    return named, [key for key in keys if not (key.path in is_left or key.takes_objects)]


def bounds(key: Key, kind: type):
    """The smallest and the largest number."""
    low, high = (key.bounds.get(name) for name in ("at_least", "at_most"))
    if kind is int:
        low = key.bounds.get("above", -LARGEST_COUNT - 1) + 1 if low is None else low
        return int(low), int(LARGEST_COUNT if high is None else high)
    low = math.nextafter(key.bounds.get("above", -1e300), math.inf) if low is None else low
    return float(low), float(math.nextafter(key.bounds.get("below", 1e300), -math.inf) if high is None else high)


def legal(key: Key):
    def part(kind: Any):
        if kind in (int, float):
            return (st.integers if kind is int else st.floats)(*bounds(key, kind))
        if key.choices:
            return st.sampled_from([choice for choice in key.choices if isinstance(choice, kind)])
        return {bool: st.booleans(), str: TEXTS, Any: TEXTS}[kind]

    if key.is_mapping:
        return st.dictionaries(TEXTS, part(key.kinds[0]), max_size=2)
    values = st.lists(part(key.kinds[0]), max_size=3) if key.is_list else st.one_of(*map(part, key.kinds))
    return values | st.none() if key.is_optional else values


def illegal(key: Key):
    """Values just beyond the range, of another type and of no choice, each with what must be said."""
    (kind, *_), range_said = key.kinds, format_range(key)
    choices = ", ".join(str(choice).lower() for choice in key.choices)
    said = format_type(key) if key.is_list or not choices else choices
    found: list[tuple[Any, str]] = [({"a": 1}, said)] if not key.is_mapping else [(3, "a mapping")]
    if key.choices:
        beyond: Any = [("no such", choices)]
    elif kind in (int, float):
        ends = [
            end + sign if kind is int else math.nextafter(end, sign * math.inf)
            for end, sign, names in zip(bounds(key, kind), (-1, 1), ENDS, strict=True)
            if names & {*key.bounds}
        ]
        beyond = [(end, range_said) for end in ends]
        if kind is int and "at_most" not in key.bounds:
            beyond.append((LARGEST_COUNT + 1, "2**30"))
        beyond += [] if str in key.options else [("many", format_type(key))]
    else:
        beyond = [("perhaps", "true or false")] if key.options == (bool,) else []
    if key.is_mapping:
        return [*found, *(({"a": value}, said) for value, said in beyond if key.choices)]
    return [*found, *(([value] if key.is_list else value, said) for value, said in beyond)]


def write(values: dict[str, Any]):
    """A recipe with these values, in recipe.yaml too."""
    tree: dict[str, Any] = {}
    for path, value in values.items():
        *above, last = path.split(".")
        reduce(lambda part, name: part.setdefault(name, {}), above, tree)[last] = value
    Path("recipe.yaml").write_text(text := OmegaConf.to_yaml(OmegaConf.create(tree)), encoding="utf-8")
    return text


@pytest.mark.slow
@pytest.mark.parametrize("number", ROUNDS)
@EXAMPLES
@given(data=st.data())
def test_a_legal_value_of_any_key_goes_through_yaml_and_json_schema_and_back(number, data, write_recipe):
    named, keys = keys_of(number)
    values = {key.path: data.draw(legal(key), key.path) for key in keys}
    tree = yaml.safe_load(write({**named, **values}))
    assert not [*VALIDATOR.iter_errors(tree)]
    for key in keys:
        read = reduce(lambda part, name: part[name], key.path.split("."), tree)
        assert read_value(key, read) == values[key.path], key.path


def test_an_illegal_value_of_any_key_is_refused_with_its_range():
    for key in key_versions():
        assert key.bounds.get("at_most", 0) <= LARGEST_COUNT or key.path in OF_THE_HOST or int not in key.options
        for value, said in [] if key.takes_objects else illegal(key):
            with pytest.raises(BadValue) as caught:
                read_value(key, value)
            assert caught.value.rule.startswith("must be ") and said in caught.value.rule, (key.path, value)


@pytest.mark.slow
@EXAMPLES
@given(data=st.data())
def test_illegal_values_of_all_keys_are_one_problem_each_that_names_key_and_range(data, write_recipe, problems):
    named, keys = keys_of(data.draw(st.sampled_from(ROUNDS)))
    keys = [key for key in keys if key.path != f"{key.path.partition('.')[0]}.name"]  # which decides what others may be
    wrong = {key.path: data.draw(st.sampled_from(illegal(key)), key.path) for key in keys}
    text = write({**named, **{path: value for path, (value, _) in wrong.items()}})
    found = sorted((problem.key, str(problem)) for problem in problems("conf=./recipe.yaml"))
    assert [key for key, _ in found] == sorted(wrong)
    assert [key for key, message in found if wrong[key][1] not in message] == []
    broken = {".".join(map(str, error.absolute_path)) for error in VALIDATOR.iter_errors(yaml.safe_load(text))}
    kept = {key for key, _ in found if not any(place.startswith(key) for place in broken)}
    assert kept <= {"policy.overrides"}  # whose values the JSON Schema does not list


def test_the_key_that_chooses_a_variant_is_listed_once_with_all_that_it_takes():
    (name,) = [key for key in key_versions() if key.path == "optimizer.name"]
    assert (name.default, name.choices) == ("adam", tuple(VARIANTS["optimizer"])) and "which optimizer" in name.meaning
