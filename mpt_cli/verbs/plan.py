"""`plan`: the program that a run would be on a GPU that is not here, compiled and bounded."""

import argparse
import sys

from mpt_cli.errors import OK, ConfigError, Problem
from mpt_cli.verbs import print_json, say


def run_plan(arguments: argparse.Namespace) -> int:
    if arguments.device is None:
        from mpt_cli.plan.device import device_names

        names = ", ".join(device_names())
        raise ConfigError(Problem("--device", f"must be given: one of {names}, or a file.", None, "For example "
                                  "--device h100."))  # fmt: skip
    from mpt_cli.plan.plan import PlanRequest, plan
    from mpt_cli.telemetry.format import format_bytes

    request = PlanRequest(arguments.device, arguments.devices, arguments.largest_batch)
    device, plans = plan(arguments.overrides, request, lambda text: say(text, sys.stderr))
    if arguments.json:
        content = {"device": device.description, "memory": format_bytes(device.memory_bytes), "ran": False}
        print_json({**content, "plans": [each.as_dict() for each in plans]})
        return OK
    from mpt_cli.plan.display import print_plans
    from mpt_cli.telemetry.console import PrintableConsole

    print_plans(device, plans, PrintableConsole(sys.stdout))
    return OK
