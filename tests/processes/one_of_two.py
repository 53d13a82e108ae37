"""One of two processes that train together; prints what it saw, as one JSON object.

MPT_PROCESS=0/2@127.0.0.1:PORT python one_of_two.py conf=… …
"""

import hashlib
import json
import sys

import numpy as np

from mpt_cli.engine.backend import prepare_backend
from mpt_cli.settings.load import load_settings
from mpt_cli.telemetry.sink_interface import Telemetry


def main():
    settings = load_settings(sys.argv[1:])
    platform = prepare_backend(settings)
    from mpt_cli.training.checkpoint import NoStore
    from mpt_cli.training.run_from_settings import RunDefinition
    from mpt_cli.training.session import prepare

    telemetry = Telemetry([])
    session = prepare(RunDefinition(settings), platform, telemetry, NoStore())
    assert session.sampler is not None and platform.process_info is not None
    is_rank0 = platform.process_info.is_rank0
    session.sampler.is_affordable = lambda *_, **__: is_rank0  # type: ignore[method-assign]  # by clocks that differ
    session.fit()
    model, counters = session.parts.model, session.counters
    digest = hashlib.sha256(b"".join(np.asarray(v.value).tobytes() for v in model.variables)).hexdigest()
    print(
        json.dumps(
            {
                "replicas": session.parts.distribution.replicas,
                "seen": counters.seen,
                "is_sampled": counters.sample is not None,
                "skips": telemetry.tally.skip_steps,
                "scales": [counters.lowest_scale, counters.highest_scale, counters.scale],
                "weights": digest,
                "loss": session.progress.metrics["loss"],
            }
        )
    )


if __name__ == "__main__":
    main()
