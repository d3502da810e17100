"""`python -m appliance` is `vedette`."""

from __future__ import annotations

import sys

from appliance.cli import main

if __name__ == "__main__":
    sys.exit(main())
