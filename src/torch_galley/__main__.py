"""python -m torch_galley is the command `galley`."""

import sys

from torch_galley.cli.main import main

sys.exit(main())
