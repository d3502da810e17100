"""What `vedette --help` says of each command."""

from __future__ import annotations

SUMMARY = {
    "check": "check a site file, its cameras and its broker before it goes live",
    "run": "run the appliance",
    "replay": "send a recorded clip through the pipeline and print what it would have raised",
    "scenario": "prove on recorded footage what must and must not be reported",
    "scenario run": "run scenario files, or all in a folder",
    "scenario curve": "hold the router against choosing by motion, score or chance",
    "scenario keep": "keep a reviewed alert as a scenario",
    "scenario list": "list the kept ones",
    "scenario delete": "delete a kept one",
    "tune": "find the threshold that is best on recorded footage, and say why",
    "cassette": "keep the cloud's answers in a file, for replays without a cloud",
    "cassette from-store": "copy the verdicts this box really got",
    "cassette check": "read one and say what is on it",
    "calibrate": "show what the router has learnt from reviews and verdicts, and the recall that it claims",
    "export": "export reviewed alerts as data to train a detector on",
    "egress": "print what left the site: when, why, how many bytes",
    "notify": "who is told of alerts",
    "notify test": "send each target a test message and say what came back",
    "demo": "see the whole thing work on this machine, with footage that comes along",
}

CHECK = """\
Check a site file before it goes live: every key, every zone and rule, the model, the storage folder, the uplink,
and each camera, which is opened for a moment.

  vedette check /etc/vedette/site.yaml
  vedette check site.yaml --no-probe          # the file only, nothing is contacted
  vedette check site.yaml --json | jq .problems

Exit code 0: ready to run. 1: a camera or the broker did not answer. 2: the file is wrong (each fault with its line).
"""
RUN = """\
Run the appliance: read the cameras, detect, alert, keep evidence, ask the cloud, serve the dashboard.

  vedette run --config /etc/vedette/site.yaml

Ctrl-C (or SIGTERM) stops cleanly. All state is in the storage folder; starting again goes on where it stopped.
"""
DEMO = """\
See the whole thing work on this machine, without an account, a camera or a GPU: two cameras over RTSP playing footage
that comes with Vedette, the appliance, a NATS server, a cloud worker, and the dashboard.

  vedette demo
  vedette demo --clip ~/Videos/driveway.mp4
  vedette demo --camera rtsp://viewer:secret@192.168.1.20/sub

Ctrl-C stops everything.
"""
