"""Scripts around networks. Importing the appliance first switches off what libraries would tell their makers."""

import appliance  # noqa: F401
