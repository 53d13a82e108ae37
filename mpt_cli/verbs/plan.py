"""`plan`: the program that a run would be on a GPU that is not here, compiled and bounded."""

import argparse
import sys

from mpt_cli.errors import OK, ConfigError, Problem
from mpt_cli.verbs.parser import add_json, add_overrides, print_json, say

_PLAN_EXAMPLES = """examples:
  mpt plan conf=gpt2_small_synthetic --device h100
  mpt plan conf=gpt2_small_synthetic --device h100 policy=float32,mixed_float16,mixed_bfloat16
  mpt plan conf=gpt2_small_synthetic --device h100 --devices 8 trainer.batch_size=32
  mpt plan conf=resnet50_synthetic --device a100 --largest-batch
  mpt plan conf=./mine.yaml --device ./my_gpu.yaml --json > plan.json

It needs no GPU, but the extra gpu-plan (3 GB) with XLA's compiler for NVIDIA's. What is compiled is the loop that
`mpt train backend=jax` runs; times are bounds from the chip's peaks, and nothing is run."""


def configure_plan(parser: argparse.ArgumentParser) -> None:
    add_overrides(parser)
    parser.add_argument("--device", metavar="GPU", help="a100, a6000, b200, h100, h200, v100, or a file of your own")
    parser.add_argument("--devices", type=int, default=1, metavar="N", help="how many of them train it together, each "
                        "on its share of a batch (data_parallel); default: 1")  # fmt: skip
    parser.add_argument("--largest-batch", action="store_true", help="also look for the largest batch that fits, which "
                        "compiles the program several times")  # fmt: skip
    add_json(parser)
    parser.epilog = _PLAN_EXAMPLES


def run_plan(arguments: argparse.Namespace) -> int:
    """What a run would be on a GPU that is not here: memory, work by dtype, a bound on its speed, traffic."""
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
    from rich.console import Console

    from mpt_cli.plan.display import print_plans

    print_plans(device, plans, Console(file=sys.stdout, highlight=False))
    return OK
