"""Verbs that look and train nothing: `list`, `copy`, `check`, `doctor`, `plan`."""

import inspect
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from mpt_cli import plugins
from mpt_cli.errors import OK, ConfigError, DataError, config_error, did_you_mean, raise_problems
from mpt_cli.files import JsonObject, open_file, read_file, strict_json, write_atomic
from mpt_cli.redaction import watched_environment
from mpt_cli.report.tables import plain_lines, print_labelled, text_columns
from mpt_cli.settings.checks import imported_objects
from mpt_cli.settings.json_schema import MODELINE, SCHEMA_FILE, json_schema, key_fields
from mpt_cli.settings.key_type import REQUIRED, Key, format_range, format_scalar
from mpt_cli.settings.schema import (
    VARIANTS,
    Settings,
    key_versions,
    no_such_key,
    variants_of,
)
from mpt_cli.settings.search_path import (
    conf_override,
    expanded,
    group_files,
    group_names,
    is_shipped,
    project_groups,
    recipe_paths,
    shell_command,
)
from mpt_cli.settings.yaml_reader import MOST_BYTES, load_mapping
from mpt_cli.verbs import print_json, say

if TYPE_CHECKING:
    from mpt_cli.training.build_run_parts import BuildCheck


def run_list(arguments: Namespace) -> int:
    section = arguments.section
    if arguments.kind != "keys" and (arguments.schema or section is not None):
        raise config_error("KIND", "must be keys with a SECTION or --schema.", arguments.kind)
    if arguments.schema:
        print(strict_json(json_schema(), indent=2))
        return OK
    entries = LISTINGS[arguments.kind]()
    if section is not None:
        entries = [entry for entry in entries if f"{entry['name']}.".startswith(f"{section}.")]
        if not entries:
            raise ConfigError(no_such_key(section, None))
    if arguments.json:
        print_json({arguments.kind: entries})
        return OK
    width = max(len(entry["name"]) for entry in entries)
    usual, advanced = dict[str, None](), dict[str, None]()  # a key that has several defaults comes once
    for entry in entries:
        told = f"{entry['name']:<{width}}  {entry['description']}"
        (advanced if entry.get("advanced") else usual)[told] = None
    for told in [*usual, *(["\nadvanced, rarely needed:"] if advanced else []), *advanced]:
        say(told)
    return OK


def _recipes() -> list[dict[str, str]]:
    entries = []
    for name, path in recipe_paths().items():
        try:
            description = str(load_mapping(path).get("description", ""))
        except ConfigError as error:
            description = f"(unreadable: {error})"
        entries.append({"name": name, "description": description, "command": f"mpt train conf={name}"})
    return entries


def _variants(section: str) -> list[dict[str, str]]:
    """Return the variants of a section, each with the first paragraph of its docstring."""
    return [
        {"name": name, "description": inspect.cleandoc(cls.__doc__ or "").partition("\n\n")[0].replace("\n", " ")}
        for name, cls in variants_of(section).items()
    ]


def _files_of(group: str, prefix: str = "") -> list[dict[str, str]]:
    """Return the files of a group; those of the project are listed with their path."""
    return [
        {"name": prefix + name, "description": (_heading(path) + ("" if is_shipped(path) else f" ({path})")).strip()}
        for name, path in sorted(group_files(group).items())
    ]


def _heading(path: Path) -> str:
    """Return the comment that opens a group file, below `# @package`, up to the first line that ends a sentence."""
    words = list[str]()
    try:
        lines = read_file(path, MOST_BYTES, errors="replace").splitlines()
    except OSError as error:
        return f"(unreadable: {error.strerror})"
    for line in lines:
        text = line.removeprefix("#").strip()
        if not words and (not text or text.startswith("@package")):
            continue
        if not line.startswith("#") or (words and words[-1].endswith((".", "!", "?"))):
            break
        words.append(text)
    return " ".join(words)


def _keys() -> list[JsonObject]:
    versions: dict[tuple[str, str], list[Key]] = {}
    for key in key_versions():
        versions.setdefault((key.path, key.meaning), []).append(key)
    return [
        {"name": key.path, "description": _format_key(key, versions[key.path, key.meaning]), **key_fields(key)}
        for key in key_versions()
    ]


def _format_key(key: Key, versions: Sequence[Key]) -> str:
    """Return the meaning and details of a key, with the default of each variant where they differ."""
    section = key.path.partition(".")[0]
    is_one = len(versions) == 1
    is_of_some = is_one and section in VARIANTS and len(key.variants) < len(variants_of(section))
    details = [
        *(_format_default(each) + ("" if is_one else f" of {', '.join(each.variants)}") for each in versions),
        format_range(key),
        "|".join(map(format_scalar, key.choices)),
        f"only {', '.join(key.variants)}" if is_of_some else "",
    ]
    return f"{key.meaning} ({'; '.join(detail for detail in details if detail)})"


def _format_default(key: Key) -> str:
    return f"default {format_scalar(key.default)}" if key.default != REQUIRED else "must be given"


LISTINGS: dict[str, Callable[[], list[JsonObject]]] = {
    "recipes": _recipes,
    "models": lambda: _variants("model"),
    "data": lambda: _variants("data"),
    "policies": lambda: _files_of("policy"),
    "groups": lambda: [
        entry for group in [*group_names(), *sorted(project_groups())] for entry in _files_of(group, f"{group}=")
    ],
    "optimizers": lambda: _variants("optimizer"),
    "modes": lambda: _variants("loss_scale"),
    "keys": _keys,
}


def run_copy(arguments: Namespace) -> int:
    source = recipe_paths().get(arguments.recipe)
    if source is None:
        remedy = did_you_mean(arguments.recipe, recipe_paths()) or "`mpt list recipes` shows them."
        raise config_error("RECIPE", "no recipe has this name.", arguments.recipe, remedy)
    if arguments.destination == "-":
        say(read_file(source).rstrip())
        return OK
    target = expanded(arguments.destination or ".")
    target = target / source.name if target.is_dir() else target
    _copy(source, target)
    lines = [f"{target}: {shell_command('train', conf_override(target))}"]
    schema = target.with_name(SCHEMA_FILE)
    if not schema.exists():
        write_atomic(schema, strict_json(json_schema(), indent=2) + "\n")
        lines.append(f"{schema}: lets an editor with a yaml-language-server complete and check keys")
    say("\n".join(lines))
    return OK


def _copy(source: Path, target: Path) -> None:
    try:
        with open_file(source) as recipe, target.open("xb") as file:
            file.write(MODELINE.encode() + recipe.read(MOST_BYTES))
    except FileExistsError:
        raise DataError(f"{target} exists already. Nothing was changed; give another DEST.") from None
    except OSError as error:
        raise DataError(f"{source} cannot be copied: {error.filename or target}: {error.strerror}.") from None


def _settings_of(arguments: Namespace) -> tuple[Settings, list[str], list[str]]:
    """Return the settings, the environment variables that they read, and notes on the recipe."""
    from mpt_cli.runs.expectations import applicable_expectations
    from mpt_cli.settings.load import load_with_notes
    from mpt_cli.settings.overrides import keys_given

    with watched_environment(is_closed=arguments.untrusted) as variables:
        settings, notes = load_with_notes(arguments.overrides)
        expected = applicable_expectations(settings.expect, keys_given(arguments.overrides))
        return replace(settings, expect=expected), [*variables], notes


def _show(arguments: Namespace) -> int:
    from mpt_cli.settings.load import resolved_yaml

    settings, variables, notes = _settings_of(arguments)
    imports = imported_functions(settings)
    if arguments.json:
        print_json({"imports": list(imports.values()), "environment": variables, "settings": asdict(settings)})
    else:
        # a recipe that names functions is code: whoever gets one from elsewhere should see what it would run
        lines = [f"# {key}: this recipe imports {reference} and runs it\n" for key, reference in imports.items()]
        lines += [f"# this recipe reads environment variables: {', '.join(variables)}\n"] if variables else []
        lines += [f"# {note}\n" for note in notes]
        say("".join(lines) + resolved_yaml(settings).removesuffix("\n"))
    return OK


def imported_functions(settings: Settings) -> dict[str, str]:
    """Return the functions that a run would import, by the key that names them."""
    mode = plugins.installed().get(settings.loss_scale.mode)
    named = {"loss_scale.mode": mode.value} if mode else {}
    for key, reference in imported_objects(settings):
        named[key] = f"{named[key]}, {reference}" if key in named else reference
    return named


def run_check(arguments: Namespace) -> int:
    from mpt_cli.data.paths import check_run_present
    from mpt_cli.runs.expectations import check_names
    from mpt_cli.training.run_from_settings import check_repeatable

    if arguments.show:
        return _show(arguments)
    if arguments.untrusted and arguments.build:
        raise config_error(
            "--build", "imports and runs what the recipe names, so it can't be combined with --untrusted."
        )
    from mpt_cli.settings.load import missing_backend, placed

    settings, variables, told = _settings_of(arguments)
    check_repeatable(settings)
    built = None
    with placed(arguments.overrides):
        raise_problems(check_names(settings))
        if not arguments.untrusted:  # files of an untrusted recipe are not opened
            check_run_present(settings)
        if arguments.build:
            from mpt_cli import training_run

            built = training_run.check_build(settings)
            raise_problems(check_names(settings, built.metrics))
    missing = missing_backend(settings)
    if arguments.json:
        print_json(
            {
                "status": "ok",
                "recipe": settings.recipe,
                "environment": variables,
                "backend": settings.backend.name,
                "cannot_run_here": missing or None,
                "build": asdict(built) if built else None,
            }
        )
    else:
        reads = [f"reads environment variables: {', '.join(variables)}"] if variables else []
        notes = [*told, *([missing] if missing else [])]
        parts = f"{settings.model.name} on {settings.data.name}, {settings.optimizer.name}"
        scaling = f"{settings.policy.name}, loss scale {settings.loss_scale.mode}"
        say("\n".join([f"ok: {settings.recipe}: {parts}, {scaling}", *reads, *notes]))
        if built:
            say("\n".join(_build_lines(built)))
    return OK


def _build_lines(built: "BuildCheck") -> list[str]:
    titles = ["layer", "kind", "policy", "computes", "variables", "parameters", ""]
    layers = []
    for layer in built.layers:
        remarks = "; ".join(filter(None, ["head" if layer.is_head else "", layer.reason, layer.risk]))
        dtypes = layer.policy, layer.compute_dtype, layer.variable_dtype
        layers.append((layer.path, layer.kind, *dtypes, f"{layer.parameters:>10,}", remarks))
    overrides = ", ".join(f"{pattern}: {policy}" for pattern, policy in built.overrides.items())
    return [
        f"data: {built.data}",
        f"loss scale: {built.loss_scale}",
        *plain_lines(text_columns(titles), layers),
        f"{built.parameters:,} parameters",
        *(f"warning: {warning}" for warning in built.warnings),
        *([f"chosen: {quote(f'policy.overrides={{{overrides}}}')}"] if overrides else []),
    ]


def run_doctor(arguments: Namespace) -> int:
    if arguments.completion:
        from mpt_cli.verbs.completion import completion_script

        print(completion_script(arguments.completion), end="")
        return OK
    from mpt_cli.doctor import doctor, doctor_report_rows
    from mpt_cli.telemetry.console import PrintableConsole

    report = doctor()
    if arguments.json:
        print_json(report)
    else:
        print_labelled(doctor_report_rows(report), PrintableConsole(sys.stdout))
    return int(report["exit_code"])


def run_plan(arguments: Namespace) -> int:
    from mpt_cli.plan.device import load_device
    from mpt_cli.plan.plan import plan, print_plans
    from mpt_cli.telemetry.console import PrintableConsole
    from mpt_cli.telemetry.format import format_bytes

    device = load_device(arguments.device)
    plans = plan(arguments.overrides, arguments.device, arguments.devices, lambda text: say(text, sys.stderr))
    if arguments.json:
        content = {"device": device.description, "memory": format_bytes(device.memory_bytes)}
        print_json({**content, "plans": [each.as_dict() for each in plans]})
    else:
        print_plans(device, plans, PrintableConsole(sys.stdout))
    return OK
