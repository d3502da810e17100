"""The dashboard of one site: pages, JSON API and event streams. It uses the package `web`, as any web program would.

Importing it loads FastAPI in the way that saves memory (`load_fastapi`), before a module of this package imports
FastAPI itself, and names the folder of the dashboard's styles and scripts.
"""

from pathlib import Path

from appliance.web import assets, load_fastapi

load_fastapi()
assets.add_folder(Path(__file__).parent)
