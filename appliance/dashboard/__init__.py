"""The dashboard of one site: pages, JSON API and event streams, on what `web` has for every web program."""

from pathlib import Path

from appliance.web import folders, openapi_models

openapi_models.load_unbuilt()
folders.add(Path(__file__).parent)
