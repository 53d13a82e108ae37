"""One module per verb, each with `configure(parser)` and `run(arguments) -> exit code`; imported when it is called."""

VERBS = {
    "train": "one run: mpt train conf=digits_cnn loss_scale.initial_scale=2**10",
    "sweep": "every combination of the values given, ranked: mpt sweep conf=digits_mlp seed=0,1,2",
    "diagnose": "gradient ranges and the loss scale they need: mpt diagnose conf=digits_cnn; or which layer overflowed",
    "compare": "one recipe under several precisions, side by side: mpt compare conf=digits_cnn",
    "report": "one page of a run, of several overlaid, of a sweep or of a comparison",
    "reproduce": "recipes or runs again, held against what was expected: mpt reproduce --all --junit results.xml",
    "verify-resume": "proof that a killed run goes on as if nothing had happened: mpt verify-resume conf=digits_mlp",
    "evaluate": "metrics of a finished run's model",
    "export": "a finished run's model as .keras, SavedModel or ONNX",
    "check": "is the configuration sound? --build also builds the model and audits its dtypes",
    "show": "the resolved configuration, and which functions it would import",
    "list": "what there is: recipes, models, data, policies, optimizers, keys",
    "copy": "a recipe as a file of your own to edit",
    "doctor": "versions, devices, what each policy gains here, what is missing",
    "completion": "the script that completes mpt's words in bash, zsh or fish",
}
HIDDEN_VERBS = ("__complete", "__killed")
EXIT_CODES = """exit codes: 0 done, 1 a bug in mpt, 2 bad configuration or usage, 3 data or files, 4 numerical failure,
            5 expectation not met, 130 interrupted, 143 terminated"""
