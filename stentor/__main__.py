"""`python -m stentor`."""

import sys

from stentor.cli import main

sys.exit(main())
