"""`python -m mpt_cli` is `mpt`."""

import sys

from mpt_cli.cli import main

sys.exit(main())
