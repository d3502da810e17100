"""The dashboard of one site: pages, JSON API and event streams, on what `web` has for every web program."""

from pathlib import Path

from appliance.web import assets, load_fastapi

load_fastapi()
assets.add_folder(Path(__file__).parent)
