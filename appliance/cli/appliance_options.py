"""Options and help of the commands for an appliance and its site: check, run, users, cameras, backup, demo ..."""

from __future__ import annotations

from pathlib import Path

from appliance.base.command_exit import whole_number_between
from appliance.cli.command_table import (
    CONFIG,
    JSON,
    JSON_TABLE,
    CommandTable,
    json_switch,
    number_between,
    option,
    seconds,
    switch,
)

APPLIANCE = CommandTable()

APPLIANCE.command(
    "check",
    "check a site file, its cameras and its broker before it goes live",
    """\
Check a site file before it goes live: every key, every zone and rule, the model, the storage folder, the uplink,
and each camera, which is opened for a moment.

  vedette check /etc/vedette/site.yaml
  vedette check site.yaml --no-probe          # the file only, nothing is contacted
  vedette check site.yaml --json | jq .problems

Exit code 0: ready to run. 1: a camera or the broker did not answer. 2: the file is wrong (each fault with its line).
""",
    option("site_file", type=Path, metavar="CONFIG", help="the site file (YAML)"),
    option("--no-probe", dest="probe", action="store_false", help="do not contact cameras or the broker"),
    JSON_TABLE,
    run="appliance.cli.site_check:check",
)


APPLIANCE.command(
    "run",
    "run the appliance",
    """\
Run the appliance: read the cameras, detect, alert, keep evidence, escalate to the cloud, serve the dashboard.

  vedette run --config /etc/vedette/site.yaml
  vedette run                                     # ./site.yaml; where there is none, the first run begins
  vedette run --listen 0.0.0.0                    # the first run, from a browser on another machine

The first run writes a small ./site.yaml, keeps recordings in ./vedette-data, and prints an address and a one-time code:
the page there creates the first user, names the site and adds the first camera. Until then nothing else is served.
Ctrl-C (or SIGTERM) stops cleanly. All state is in the storage folder; starting again goes on where it stopped.
""",
    option("--config", dest="site_file", type=Path, metavar="FILE", help="the site file (default: ./site.yaml)"),
    option("--listen", metavar="HOST[:PORT]", help="at the first run: where to serve the dashboard"),
    run="appliance.core.app:run_command",
)


APPLIANCE.command(
    "calibrate",
    "show what the router has learnt from reviews and verdicts, and the recall that it claims",
    """\
Show how likely an alert is real, per camera and label, as learnt from reviews and verdicts, and which alerts
the router may leave out while it keeps the recall that it claims. The appliance learns by itself, at its start and
every hour; this command shows what it would learn now. It only reads, and the appliance may run meanwhile.

  vedette calibrate --config site.yaml
  vedette calibrate --config site.yaml --recall 0.95
  vedette calibrate --config site.yaml --json | jq '.groups[] | {camera, label, n, claim}'

Exit code 0: done. 1: the storage folder cannot be read. 2: wrong use or configuration.
""",
    CONFIG,
    option(
        "--recall",
        type=number_between(0.5, 0.9999, "recall"),
        metavar="R",
        help="share of the real alerts that must be kept (default: escalation.router.recall_min)",
    ),
    option("--out", type=Path, metavar="FILE", help="write the calibration here (JSON)"),
    JSON_TABLE,
    run="appliance.cli.calibrate_command:calibrate_command",
)


APPLIANCE.command(
    "egress",
    "print what left the site: when, why, how many bytes",
    """\
List what left this site, when, why, and how many bytes: one line for each set of facts, image and clip that the broker
has stored, and each notification that arrived. The source is the audit table, which nothing deletes. The command only
reads, and the appliance may run meanwhile.

  vedette egress --config site.yaml
  vedette egress --config site.yaml --camera gate --from 2026-11-20T22:00 --to 2026-11-21T06:00
  vedette egress --config site.yaml --pictures              # what had pixels in it
  vedette egress --config site.yaml --json | jq 'select(.kind == "clip") | .sha256'

The sha256 is that of the file in the storage folder (of facts: of the JSON that was sent), so that each line can be
compared with the file. Exit code 0: done. 1: the storage folder cannot be read. 2: wrong use or configuration.
""",
    CONFIG,
    option("--from", dest="t_from", metavar="TIME", help="only what left from then on (2026-11-20T10:00)"),
    option("--to", dest="t_to", metavar="TIME", help="only what left before then"),
    option("--camera", metavar="NAME", help="only of this camera"),
    switch("--pictures", dest="with_pixels", help="only what had pixels in it"),
    json_switch("JSON lines, one for each thing that left"),
    run="appliance.cli.egress_command:egress_command",
)


APPLIANCE.command(
    "notify",
    "test the notification targets",
    "Test who is notified of alerts: the targets of `notify` in the site file (docs/notify.md).",
)


APPLIANCE.command(
    "notify test",
    "send each target a test message and print the answer",
    """\
Send each target of the site file a test message, and print the answer. The appliance may run meanwhile; nothing is
stored.

  vedette notify test --config site.yaml
  vedette notify test --config site.yaml --target phone

Exit code 0: all accepted it. 1: one did not. 2: wrong use or configuration.
""",
    CONFIG,
    option("--target", dest="name", metavar="NAME", help="only this one"),
    json_switch("one JSON line a target"),
    run="appliance.notify.notifier:test_command",
)


APPLIANCE.command(
    "users",
    "list, add and change the users of the dashboard",
    "List, add and change the users of the dashboard (docs/dashboard.md, Access). The appliance may run meanwhile.",
)


APPLIANCE.command(
    "users add",
    "add a user",
    """\
Add a user of the dashboard. The password is typed at a prompt, or is the first line of standard input; never an option.
A viewer watches; a reviewer also reviews and keeps alerts; an admin also changes settings and users. The first must be
an admin.

  vedette users add anna --role admin --config site.yaml
  vedette users add gatehouse --role viewer --camera gate --camera yard --config site.yaml
  pass show vedette/anna | vedette users add anna --role admin --config site.yaml

Exit code 0: done. 1: the storage folder cannot be written. 2: wrong use or configuration.
""",
    CONFIG,
    option("name", metavar="NAME", help="letters, digits and . _ @ -"),
    option("--role", choices=("viewer", "reviewer", "admin"), required=True, help="what the user may do"),
    option(
        "--camera", dest="cameras", action="append", default=[], metavar="NAME", help="only this camera (repeatable)"
    ),
    run="appliance.cli.users_command:add_command",
)


APPLIANCE.command(
    "users list",
    "list the users",
    """\
List every user of the dashboard, with role and cameras.

  vedette users list --config site.yaml
  vedette users list --config site.yaml --json | jq -r '.[] | select(.role == "admin") | .name'
""",
    CONFIG,
    json_switch("a JSON array instead of a table"),
    run="appliance.cli.users_command:list_command",
)


APPLIANCE.command(
    "users remove",
    "remove a user and sign them out",
    """\
Remove a user and end their sessions. The last admin cannot be removed.

  vedette users remove anna --config site.yaml
""",
    CONFIG,
    option("name", metavar="NAME", help="as `vedette users list` says"),
    run="appliance.cli.users_command:remove_command",
)


APPLIANCE.command(
    "users passwd",
    "give a user another password",
    """\
Give a user another password (typed at a prompt, or the first line of standard input), end their sessions, and enable
them.

  vedette users passwd anna --config site.yaml
  vedette users passwd anna --without-second-factor --config site.yaml     # the phone is lost, and the recovery codes
""",
    CONFIG,
    option("name", metavar="NAME", help="as `vedette users list` says"),
    switch("--without-second-factor", help="and remove their second factor"),
    run="appliance.cli.users_command:passwd_command",
)


APPLIANCE.command(
    "users unlock",
    "print a code that signs in a user who is locked out",
    """\
Print a code that signs a user in once, within 15 minutes, in place of the password. It also works while strangers
guess at the password and sign-ins from new addresses must wait. A second factor is still required.

  vedette users unlock anna --config site.yaml
""",
    CONFIG,
    option("name", metavar="NAME", help="as `vedette users list` says"),
    run="appliance.cli.users_command:unlock_command",
)


APPLIANCE.command(
    "cameras",
    "find cameras in the local network",
    "Find cameras in the local network. Add them on the dashboard, or by hand in the site file.",
)


APPLIANCE.command(
    "cameras discover",
    "list the ONVIF cameras that answer in the local network",
    """\
Ask the local network for ONVIF cameras (WS-Discovery, by multicast on every interface), and list those that answer
within some seconds: address, name and make, as each camera reports them. The command does not sign in to a camera and
changes nothing.

  vedette cameras discover
  vedette cameras discover --json | jq -r '.[].address'

Multicast does not pass routers, most VLANs, and the network of a container (docs/onvif.md). Exit code 0: asked,
whether or not anything answered. 2: wrong use.
""",
    json_switch("a JSON list instead of a table"),
    run="appliance.onvif.discovery:discover_command",
)


APPLIANCE.command(
    "diagnostics",
    "write a zip for support: versions, state, faults, log, without secrets",
    """\
Write a zip for support: the site file, versions, the machine, faults, gaps and the schema, without secrets, images and
users. The appliance may run meanwhile; its own log and counters are in the bundle of the dashboard's page System; --log
adds a log here.

  vedette diagnostics --config site.yaml --out diagnostics.zip
  journalctl -u vedette -n 5000 | vedette diagnostics --config site.yaml --out diagnostics.zip --log -
  vedette diagnostics --config broken.yaml --storage /var/lib/vedette --out diagnostics.zip

Passwords and tokens of the site file, its versions, its secrets file and the environment are removed from every part.
Exit code 0: done. 2: wrong use or configuration.
""",
    CONFIG,
    option("--out", type=Path, required=True, metavar="FILE", help="the zip to write"),
    option("--log", default="", metavar="FILE", help="a log to include, - for standard input; its end is kept"),
    option("--storage", type=Path, metavar="DIR", help="storage.dir, if the site file cannot be read"),
    run="appliance.cli.backup_and_diagnostics:diagnostics_command",
)


APPLIANCE.command(
    "backup",
    "write the site to one file: settings, users, alerts, reviews",
    """\
Write the site to one file: the site file and its versions, the database (alerts, reviews, users, counters), and with
--evidence the images and clips of alerts; never the recording. The appliance may run meanwhile.

  vedette backup --config site.yaml --out depot-7.vedette.zip
  vedette backup --config site.yaml --out depot-7.vedette.zip --evidence
  vedette backup --config site.yaml --out depot-7.vedette.zip --secrets        # asks for a passphrase

Without --secrets it holds no password and no token: a restore takes them from the site file that is there then. With
--secrets they are encrypted with a passphrase (typed at a terminal, or the first line of standard input); nobody can
recover a lost passphrase. Exit code 0: done. 1: the database or the disk. 2: wrong use or configuration.
""",
    CONFIG,
    option("--out", type=Path, required=True, metavar="FILE", help="the file to write"),
    switch("--evidence", help="include the images and clips of alerts"),
    switch("--secrets", help="include the secrets, encrypted with a passphrase"),
    run="appliance.cli.backup_and_diagnostics:backup_command",
)


APPLIANCE.command(
    "restore",
    "restore a backup",
    """\
Restore a backup. All of it is checked before anything is changed; what is there now is kept in the storage folder
(before-restore-…). If the appliance runs, the backup is put in place at its next start.

  vedette restore depot-7.vedette.zip --config site.yaml
  vedette restore depot-7.vedette.zip --config site.yaml --storage /data    # no site file yet, or a broken one
  vedette restore other.vedette.zip --config site.yaml --other-site

Exit code 0: done, or ready. 1: the database or the disk. 2: it is no backup of this site, or was changed.
""",
    option("backup", type=Path, metavar="FILE", help="the backup"),
    CONFIG,
    option("--storage", type=Path, metavar="DIR", help="storage.dir, if no site file names it"),
    switch("--other-site", help="accept the backup of a site with another name"),
    run="appliance.cli.backup_and_diagnostics:restore_command",
)


APPLIANCE.command(
    "judge",
    "which language model fits this machine, what it costs; start it",
    """\
Say which small open vision-language model fits this machine, how long it takes for an answer and what that costs, by
arithmetic; with --start run llama.cpp's server with it, at the lowest priority, until Ctrl-C.

  vedette judge
  vedette judge --start
  vedette judge --start --model smolvlm2-2.2b --port 8000
  vedette judge --start --file model.gguf --mmproj mmproj.gguf

The server is $VEDETTE_LLAMA_SERVER, `llama-server` on the PATH, or the Python package llama-cpp-python[server].
llama-server downloads the model, some GB, from Hugging Face unless --file names one. `vedette demo` finds the server by
itself; docs/worker.md says how an appliance judges by itself.
Exit code 0: done. 1: no model fits, or the server failed. 2: wrong use.
""",
    switch("--start", help="start the server, try it, and keep it running"),
    option("--model", metavar="NAME", help="one of the table; else the largest that fits and answers in a minute"),
    option(
        "--port", type=whole_number_between(1, 65535, "port"), default=8000, metavar="N", help="of the server (8000)"
    ),
    option("--file", type=Path, metavar="GGUF", help="a model that is here, instead of a download"),
    option("--mmproj", type=Path, metavar="GGUF", help="its image encoder"),
    JSON,
    run="appliance.cli.judge_command:judge_command",
)


APPLIANCE.command(
    "demo",
    "try everything on this machine, with footage that is included",
    """\
Try everything on this machine, without an account, a camera or a GPU: two cameras over RTSP that play included footage,
the appliance, a NATS server, a cloud worker, and the dashboard.

  vedette demo
  vedette demo --clip ~/Videos/driveway.mp4
  vedette demo --camera rtsp://viewer:secret@192.168.1.20/sub
  vedette demo --vlm http://127.0.0.1:8000

Without --vlm the demo looks for a model server on this machine (`vedette judge --start` runs one). If there is none, or
with `--vlm none`, the cloud worker rechecks alerts with a detector: it can reject or doubt, but not confirm. A key goes
into VLM_API_KEY.

Ctrl-C stops everything.
""",
    option("--clip", type=Path, metavar="FILE", help="play this video as the camera"),
    option(
        "--camera",
        dest="cameras",
        action="append",
        default=[],
        metavar="URL",
        help="use this rtsp:// camera (repeatable)",
    ),
    option("--model", metavar="M", help="detector model: auto, a name, a path to an .onnx, or builtin:hog"),
    option(
        "--vlm", metavar="URL", help="the judge: a vision-language model's OpenAI-compatible server; none: a detector"
    ),
    option("--vlm-model", metavar="NAME", help="its model, when the server has several"),
    option(
        "--port",
        type=whole_number_between(0, 65535, "port"),
        metavar="N",
        help="dashboard port (default 8080, or a free one)",
    ),
    option("--data", type=Path, metavar="DIR", help="folder of recordings and the database"),
    option("--no-browser", dest="open_browser", action="store_false", help="do not open a browser"),
    option(
        "--seconds",
        type=seconds,
        metavar="S",
        help="stop by itself after S seconds",
    ),
    json_switch("what happens as JSON lines"),
    run="appliance.demo.demo_run:demo",
)
