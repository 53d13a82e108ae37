"""Which file of each group is taken: said outright, by `model.name=cnn`, or implied by `model.builder=…`."""

from dataclasses import dataclass
from typing import Any

from mpt_cli.errors import Problem
from mpt_cli.settings.locate import group_choices
from mpt_cli.settings.suggest import did_you_mean

# Such a key acts as its group: model.name=cnn as model=cnn.
CHOOSING_KEYS = {f"{group}.name": group for group in ("model", "data", "optimizer", "policy", "backend", "distribute")}
CHOOSING_KEYS["loss_scale.mode"] = "loss_scale"
IMPLIED = {"model.builder": "builder", "model.path": "saved", "data.loader": "loader"}


@dataclass(frozen=True)
class Choice:
    """One file of a group, and the words that chose it (for messages)."""

    group: str
    name: Any
    written: str

    def problem(self) -> Problem | None:
        """Why it cannot be taken, None when it can."""
        valid = group_choices(self.group)
        if self.name in valid:
            return None
        remedy = did_you_mean(str(self.name), valid)
        received = "null" if self.name is None else self.name
        return Problem(self.written, f"must be one of {', '.join(valid)}.", received, remedy)


def take_choices(body: dict[str, Any], choices: dict[str, Choice], problems: list[Problem]) -> None:
    """Moves each choosing key of a recipe's body into `choices`, and adds the choices its keys imply."""
    for path, group in CHOOSING_KEYS.items():
        section, key = body.get(group, {}), path.partition(".")[2]
        if key in section:
            add_choice(Choice(group, section.pop(key), path), choices, problems)
    for path, name in IMPLIED.items():
        group, key = path.split(".")
        if key in body.get(group, {}):
            choices.setdefault(group, Choice(group, name, path))


def choosing_key(group: str) -> str | None:
    """The key within a section that chooses its file, None where only the group itself does.

    >>> choosing_key("model"), choosing_key("loss_scale"), choosing_key("trainer")
    ('name', 'mode', None)
    """
    return next((path.partition(".")[2] for path, chosen in CHOOSING_KEYS.items() if chosen == group), None)


def add_choice(choice: Choice, choices: dict[str, Choice], problems: list[Problem]) -> None:
    """Adds a choice of the same level; a second one that says something else is a problem."""
    first = choices.setdefault(choice.group, choice)
    if first.name != choice.name and not _refines(choice, first):
        rule = f"must agree with {first.written}={first.name}."
        problems.append(Problem(choice.written, rule, choice.name, f"Keep one of the two words for {choice.group}."))


def _refines(choice: Choice, first: Choice) -> bool:
    """policy=float8_mixed_float16 with policy.name=mixed_float16 says the same twice."""
    return choice.group == "policy" and first.name == f"float8_{choice.name}"
