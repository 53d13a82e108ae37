"""The table of wrong command lines: each exits with its code, names its key, shows no traceback and leaves nothing."""

import shlex
from pathlib import Path

import pytest

CNN = "train conf=digits_cnn"
SEARCH = "sweep conf=digits_mlp --trials 3"
RATE = f"{SEARCH} 'optimizer.learning_rate=tag(log,interval(1e-4,1e-1))'"
RANGE = "sweep conf=digits_mlp --dry-run"
COMPARE = "compare conf=digits_mlp policy=float32,mixed_float16"
WRONG = {
    "": "usage: mpt",
    "trian conf=digits_cnn": "there is no verb 'trian'. Did you mean train?",
    f"{CNN} --josn": "--josn",
    "check --\x1b[31mred": "unrecognized arguments: --\\x1b[31mred",
    "run policy=auto_float16 train.py": "mpt.fit(policy='auto_float16') in the script",
    "run": "script: must be given: mpt run",
    "run model=cnn train.py": "model: must be set in the script itself. Received: 'cnn'. mpt run takes policy",
    "run backend.device=cpu train.py": "backend.device: must be set in the script itself",
    "run epochs=3 polcy=float32 train.py": (
        "epochs: must be set in the script itself",
        "polcy: ",
        "Did you mean policy?",
    ),
    "run --policy float32 train.py": "--policy: is no option; keys are set as KEY=VALUE. Did you mean policy?",
    "run policy=float99 train.py": "policy: must be one of",
    # recipes, and words that are no key=value
    "train": "conf: must be given",
    "train conf=digits_cn": "conf: must name a recipe or a YAML file. Received: 'digits_cn'. Did you mean conf=digits_cnn?",
    "train conf=digits_cnn.yaml": "Did you mean conf=digits_cnn?",
    "train conf=digits_cnn conf=digits_mlp": "conf: must agree with conf=digits_cnn.",
    "train digits_cnn": "digits_cnn: must be of the form key=value. Write conf=digits_cnn.",
    f"{CNN} =3": "=3: must be of the form key=value",
    f"{CNN} data.path={{a": "Text with special signs",
    f"{CNN} 'seed=range(3'": "at input 'range(3'. Received: 'range(3'.\n",
    f"{CNN} policy@head=float32": "without @package",
    f"{CNN} ~policy": "~policy: a group cannot be removed",
    # keys and choices that there are not, each said with the others
    f"{CNN} polcy=float32 trainer.epoch=3 learning_rate=1e-3 trainer.epochs.first=3 +new.section.key=3": (
        "5 problems",
        "polcy: ",
        "Did you mean policy?",
        "Did you mean trainer.epochs?",
        "Did you mean optimizer.learning_rate?",
        "trainer.epochs.first: ",
        "no keys inside",
        "new.section.key: ",
    ),
    f"{CNN} optimizer=sgd optimizer.beta_1=0.5": "Write optimizer.kwargs.beta_1: it is an argument of the class.",
    f"{CNN} optimizer=sgd optimizer.kwargs.beta_1=0.5": "It has momentum, nesterov",
    f"{CNN} 'optimizer.kwargs={{beta1: 0.5, learning_rate: 1}}'": ("Did you mean beta_1?", "Write optimizer.learning_"),
    f"{CNN} optimizer.lr=1 early_stoping=3 precision=16-mixed gpus=2 model._target_=nets.deep.build zzz=1": (
        "mean optimizer.learning_rate?",
        "mean trainer.early_stopping?",
        "mean policy=mixed_float16?",
        "mean distribute.devices?",
        "Write model.builder: nets.deep:build.",
        "zzz: there is no such key.",
    ),
    f"{CNN} policy=bf16 trainer.early_stoping=3": ("mean mixed_bfloat16?", "mean trainer.early_stopping?"),
    f"{CNN} policy=amp loss_scale.rize=3": ("mean mixed_float16?", "loss_scale.rize: there is no such key"),
    f"{CNN} --epochs 3 --learning-rate=1e-3": (
        "--epochs: is no option; keys are set as KEY=VALUE. Did you mean trainer.epochs?",
        "--learning-rate: is no option; keys are set as KEY=VALUE. Did you mean optimizer.learning_rate?",
    ),
    f"{CNN} policy=mixed_fp16 loss_scale.mode=off": ("mean mixed_float16?", "auto, dynamic, fixed, logmax, none"),
    f"{CNN} trainer.jit_compile=ture model.filters=8": ("Did you mean true?", "Write model.filters=[8]."),
    f"{CNN} model=builder data=loader": ("model.builder: must be given", "data.loader: ", "package.module:function"),
    f"{CNN} seed=0,1,2": "seed: ",
    "check conf=digits_cnn trainer.epochs=0": "mpt check: trainer.epochs: must be >= 1. Received: 0.\n",
    "check --show --build conf=digits_cnn": "not allowed with argument",
    "reproduce digits_mlp --at 3": "--at: is for --resume-check. Received: 3.",
    "reproduce": "give recipes, files or run directories, or --all",
    "reproduce digits_mpl": "Did you mean conf=digits_mlp?",
    "reproduce digits_mlp --timeout 0 -j 0 --rtol -1": "3 problems",
    "reproduce digits_mlp --dry-run --at 3 --retries -1 --timeout 0": "3 problems",
    "reproduce digits_mlp digits_cnn digits_mlp -k nosuch": "-k: must be part of a name or tag. Received: 'nosuch'. There are digits_mlp, digits_cnn",
    "reproduce --resume-check conf=digits_mlp --retries 2 --rtol 0.5": "takes one recipe, its changes, --at, --output and --json, no more.\n",
    "copy digits_cn": "mpt copy: RECIPE: no recipe has this name. Received: 'digits_cn'. Did you mean digits_cnn?\n",
    "compare": "mpt compare: conf: must be given",
    "compare conf=digits_mlp -j 0": "mpt compare: --jobs: must be >= 1. Received: 0.",
    "compare conf=digits_mlp --tolerance nan": "mpt compare: --tolerance: must be >= 0.",
    "compare conf=digits_mlp --timeout 0": "mpt compare: --timeout: must be > 0 seconds.",
    "compare --resume x -j 2": "mpt compare: --resume: must be given without overrides, -j, --seeds",
    "compare conf=digits_mlp policy=float32": "policy: must have at least two values to compare",
    f"{COMPARE} model=mlp,cnn": "model: must have one value: what is compared must be the same training",
    f"{COMPARE} optimizer.learning_rate=1e-3,1e-2": "optimizer.learning_rate: must have one value",
    f"{COMPARE} --seeds 0": "--seeds: must be >= 1",
    f"{COMPARE} seed=1,2 --seeds 2": "--seeds: must be left out where seed= has several values",
    "compare conf=digits_mlp policy=float32,mixed_float61": "policy: ",
    f"{CNN} data=loader data.loader=nowhere:load": "data.loader: there is no module nowhere,",
    # what users of Hydra type
    f"{CNN} -m": "-m: is an option of Hydra's own. `mpt sweep` runs every combination",
    "train --cfg job": "`mpt check --show conf=…` prints the resolved configuration",
    "train --config-name=mine": "own. conf=NAME or conf=./FILE.yaml chooses a recipe.",
    "train --config-path x": "--config-dir DIR adds a folder",
    f"{CNN} hydra.run.dir=x": "hydra.run.dir: there is no such key. Received: 'x'. Did you mean run_dir?",
    "sweep conf=digits_mlp hydra/launcher=joblib": "hydra/launcher: there is no such key",
    "train --config-dir": "--config-dir: must be followed by a folder",
    f"{CNN} --config-dir nowhere": "--config-dir: must be a folder with conf/",
    "check conf=digits_mlp data.loader=nowhere:load": "data.loader: there is no module nowhere,",
    # sweeps and searches
    "sweep": "mpt sweep: conf: must be given",
    "sweep conf=digits_mlp seed=0,1 -j 0": "mpt sweep: --jobs: must be >= 1. Received: 0.",
    "sweep conf=digits_mlp seed=0,1 --timeout nan": "mpt sweep: --timeout: must be > 0 seconds.",
    "sweep conf=digits_mlp seed=0,-1": "seed: must be >= 0 and <= 4294967295. Received: -1.",
    "sweep conf=digits_mlp seed=0,1 --objective loss:up": "mpt sweep: --objective: must end in :min or :max",
    f"{RANGE} 'seed=range(0,3,0)'": "seed: range() must have at most 10,000 values, in equal steps other than 0: tag(log,…) is for interval().",
    f"{RANGE} 'seed=range(0,1e400)'": "seed: range() must have at most 10,000 values, in equal steps other than 0: tag(log,…) is for interval().",
    f"{RANGE} 'seed=2**range(8,99999999999)'": "seed: range() must have at most 10,000 values, in equal steps other than 0: tag(log,…) is for interval().",
    SEARCH: "--trials: must have something to vary.",
    f"{SEARCH} 'seed=int(interval(0,9))'": "seed: must not be searched: a search would choose a lucky seed.",
    f"{RATE} seed=0,1": "seed: must not be searched: a search would choose a lucky seed. Give one",
    f"{SEARCH} 'trainer.epochs=interval(9,1)'": "trainer.epochs: must be interval(SMALLER,LARGER)",
    f"{SEARCH} 'optimizer.learning_rate=interval(-1,1e-4)'": "optimizer.learning_rate: must be >",
    f"{SEARCH} 'loss_scale.initial_scale=2**interval(8,24)'": "loss_scale.initial_scale: cannot be read: ",
    f"{RATE} --sampler-seed 1 --resume s": "--sampler-seed: is for a new search",
    f"{RATE} --trials 0": "--trials: must be >= 1. Received: 0.",
    f"{SEARCH} 'seed=tag(log,range(16,257,16))'": "range() must have at most 10,000 values, in equal steps other than 0: tag(log,…) is for interval().",
}
MISSING = {  # files, which exit with 3
    "train conf=digits_mlp data=text data.path=nowhere.txt": "data.path: there is no file nowhere.txt in the current folder.",
    "check conf=digits_mlp data=text data.path=nowhere.txt": "data.path: there is no file nowhere.txt in the current folder.",
    f"{RATE} data=text data.path=nowhere.txt": "data.path: there is no file nowhere.txt in the current folder.",
    "run nowhere.py": "there is no script nowhere.py.",
    "compare policy=float32,mixed_float16 -- absent.py --epochs 3 -m": "mpt compare: there is no script absent.py.\n",
    "compare --resume nowhere": "nowhere/compare.json does not exist.",
    "copy digits_cnn no/such/folder/x.yaml": ": No such file or directory",
    "watch nowhere": "nowhere is not the directory of a run, a sweep or a comparison: it ",
}


@pytest.mark.slow
@pytest.mark.parametrize("line", [*WRONG, *MISSING], ids=range(len(WRONG) + len(MISSING)))
def test_it_is_refused_in_a_sentence(line, mpt):
    done = mpt(*shlex.split(line))
    assert done.code == (3 if line in MISSING else 2)
    said = {**WRONG, **MISSING}[line]
    missing = [part for part in ([said] if isinstance(said, str) else said) if part not in done.err + done.out]
    assert missing == [], done.err
    assert "Traceback" not in done.err and list(Path.cwd().iterdir()) == []
