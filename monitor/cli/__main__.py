"""`python -m monitor.cli`: the same as the command `vllm-canary`."""

import sys

from monitor.cli import main

sys.exit(main())
