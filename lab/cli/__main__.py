"""``python -m lab.cli``: the command line without an installed script."""

import sys

from lab.cli import main

sys.exit(main())
