"""The verbs: in which module each stands, and its line in `mpt --help`.

A verb NAME is an entry here, `configure_NAME(parser)` in `arguments`, and `run_NAME(arguments)` in its module, which
returns the exit code. The module is imported when the verb runs: help and completion need none.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Verb:
    """`module` of `mpt_cli.verbs`; a verb without a `meaning` is not listed."""

    module: str
    meaning: str = ""


VERBS = {
    "train": Verb("train", "one run: mpt train conf=digits_cnn loss_scale.initial_scale=2**10"),
    "run": Verb("run", "an unchanged Keras script in mixed precision, with record and verdict: mpt run train.py"),
    "sweep": Verb("sweep", "every combination of the values given, ranked: mpt sweep conf=digits_mlp seed=0,1,2"),
    "diagnose": Verb(
        "diagnose",
        "gradient ranges and the loss scale they need: mpt diagnose conf=digits_cnn; or which layer overflowed",
    ),
    "plan": Verb("plan", "memory, work and bounds on a GPU that is not here: mpt plan conf=digits_cnn --device h100"),
    "compare": Verb("compare", "one recipe under several precisions, side by side: mpt compare conf=digits_cnn"),
    "watch": Verb("watch", "a run or a sweep that goes on elsewhere, seen from here: mpt watch runs/digits_cnn/RUN"),
    "report": Verb("report", "one page of a run, of several overlaid, of a sweep or of a comparison"),
    "reproduce": Verb(
        "reproduce", "recipes or runs again, held against what was expected: mpt reproduce --all --junit results.xml"
    ),
    "verify-resume": Verb(
        "verify_resume", "proof that a killed run goes on as if nothing had happened: mpt verify-resume conf=digits_mlp"
    ),
    "evaluate": Verb("trained_model", "metrics of a finished run's model"),
    "export": Verb("trained_model", "a finished run's model as .keras, SavedModel or ONNX"),
    "check": Verb("inspection", "is the configuration sound? --build also builds the model and audits its dtypes"),
    "show": Verb("inspection", "the resolved configuration, and which functions it would import"),
    "list": Verb("inspection", "what there is: recipes, models, data, policies, optimizers, keys"),
    "copy": Verb("inspection", "a recipe as a file of your own to edit"),
    "doctor": Verb("inspection", "versions, devices, what each policy gains here, what is missing"),
    "completion": Verb("completion", "the script that completes mpt's words in bash, zsh or fish"),
    "__killed": Verb("verify_resume"),
}
LISTED_VERBS = {name: verb.meaning for name, verb in VERBS.items() if verb.meaning}
