"""The dashboard of one site: pages, JSON API and event streams, on what `web` has for every web program."""

from pathlib import Path

from appliance.web import folders, load_fastapi

load_fastapi()
folders.add(Path(__file__).parent)
