"""The commands for an appliance: check, run, calibrate, egress, notify, models, users, cameras and demo."""

from __future__ import annotations

from pathlib import Path

from appliance.base.command_end import whole_number_between
from appliance.cli.command_table import (
    CONFIG,
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
    run="appliance.cli.run_command:run_command",
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
    run="appliance.notify.target_check:test_command",
)


APPLIANCE.command(
    "models",
    "list, download and verify the networks that Vedette knows",
    """\
List, download and verify the networks that `detector.model` knows by name (models.toml): those that come with Vedette,
and others under a free licence, each at a pinned commit with its sha256. A checkout exports others (Ultralytics,
RF-DETR, D-FINE, DEIM; FP16 and INT8 variants): `python -m models.export --help`. `vedette scenario compare` measures
whether one is good enough.
""",
)

APPLIANCE.command(
    "models list",
    "list the known networks, their licences, and which are here",
    """\
List every network that `detector.model` knows by name: its size, input and licence, and whether its file is here.

  vedette models list
  vedette models list --json | jq '.[] | {name, state, licence}'
""",
    json_switch("a JSON array instead of a table"),
    run="appliance.cli.models_command:list_command",
)


APPLIANCE.command(
    "models pull",
    "download a network, checked by its sha256",
    """\
Download a network. A download that was cut goes on where it stopped; a file with another sha256 than models.toml says
is not installed. `VEDETTE_MODELS` or --to names the folder; then `detector: {model: NAME}` in the site file uses it.

  vedette models pull deimv2-femto
  vedette models pull yolox-nano picodet-s --to /var/lib/vedette/models
  vedette models pull yolox-nano --mirror http://files.lan/models     # your own server with the files

Exit code 0: it is here. 2: it cannot be downloaded (with the reason).
""",
    option("names", nargs="+", metavar="NAME", help="as `vedette models list` says"),
    option("--to", type=Path, metavar="DIR", help="where to put it"),
    option("--mirror", default="", metavar="URL", help="take URL/FILE instead of the address in models.toml"),
    json_switch("a JSON array of what is here now"),
    run="appliance.cli.models_command:pull_command",
)


APPLIANCE.command(
    "models verify",
    "compare the files that are here with their sha256",
    """\
Compare the model files on this machine with models.toml.

  vedette models verify
  vedette models verify deimv2-femto

Exit code 0: all match. 1: one is not, or a named one is not here. 2: wrong use.
""",
    option("names", nargs="*", metavar="NAME", help="only these"),
    json_switch("a JSON array instead of a table"),
    run="appliance.cli.models_command:verify_command",
)


_CAMERA = option("--camera", default="", metavar="NAME", help="only this camera")

APPLIANCE.command(
    "models install",
    "install a signed bundle, and perhaps put it in force",
    """\
Install a version of a network that a publisher signed (docs/models.md). Bytes that are here already, such as those of
the same network with another head, are not fetched again; a download that was cut goes on where it stopped. The first
time, --from and --root say whom to trust; the appliance keeps both.

  vedette models install night@3 --from oci://ghcr.io/example/models --root root.json
  vedette models install night --use                     # the newest version, for all cameras
  vedette models install night@3 --use --camera gate

ADDRESS is oci://HOST/NAME (a registry), https://…, s3://BUCKET/PREFIX, or a folder. What is not signed by those whom
this appliance trusts, older than what was seen, or expired is refused, and nothing is changed.

Exit code 0: installed. 2: it is not (with the reason).
""",
    option("name", metavar="NAME[@VERSION]", help="without a version: the newest that is on offer"),
    option("--from", dest="address", default="", metavar="ADDRESS", help="where to fetch it"),
    option("--root", type=Path, metavar="FILE", help="the publisher's root.json: trust it from now on"),
    option("--use", action="store_true", help="put it in force"),
    _CAMERA,
    json_switch("a JSON object instead of text"),
    run="appliance.cli.models_command:install_command",
)


APPLIANCE.command(
    "models prove",
    "try a network on this site's recording, beside the one in force",
    """\
Let a network and the one in force examine the same frames of the last hours, and run the kept scenarios with both, in
children of the lowest priority; the appliance may run meanwhile. It is better, worse, or not enough is known to say
(docs/canary.md). The page /proofs shows the frames that differ.

  vedette models prove night@3 --config site.yaml
  vedette models prove night@3 --config site.yaml --hours 3 --camera gate --camera yard
  vedette models prove night@3 --config site.yaml --decide

--decide: a worse one is quarantined and the one before comes back, a better one is put in force on probation, and one
that is on probation and not worse on what it has recorded since is proven.

Exit code 0: better. 1: worse, or not enough is known. 2: wrong use, or nothing to try it on.
""",
    option("candidate", metavar="NETWORK", help="NAME@VERSION of an installed bundle, or as detector.model"),
    CONFIG,
    option("--hours", type=number_between(0.01, 48.0, "hours"), default=3.0, help="of recording (default: 3)"),
    option("--camera", dest="cameras", action="append", default=[], metavar="NAME", help="only these; may be repeated"),
    switch("--decide", help="do what follows from the outcome"),
    json_switch(),
    run="appliance.lab.prove_command:prove_command",
)


APPLIANCE.command(
    "advise",
    "try every network that is here on each camera's own recording",
    """\
Say for each camera what every network that is here would find, lose and cost on its last hours, beside the one in force
there; the appliance may run meanwhile. Each is a trial as by `vedette models prove` (docs/canary.md), and kept as one:
the page of models shows it.

  vedette advise --config site.yaml
  vedette advise --config site.yaml --hours 3 --camera gate --network vedette-nano-int8 --json

Exit code 0: tried. 2: wrong use, or nothing to try or to try it on.
""",
    CONFIG,
    option("--hours", type=number_between(0.01, 48.0, "hours"), default=1.0, help="of recording (default: 1)"),
    option("--camera", dest="cameras", action="append", default=[], metavar="NAME", help="only these; may be repeated"),
    option("--network", dest="models", action="append", default=[], metavar="NETWORK", help="only these, in turn"),
    json_switch(),
    run="appliance.lab.advise_command:advise_command",
)


APPLIANCE.command(
    "candidate",
    "try other settings, thresholds, prompts or models of verdicts at night",
    """\
Keep changed settings, or another prompt or model of verdicts, and have a running appliance try them each night until
they are better or worse than what is in force (docs/canary.md). The alerts that people reviewed decide. The page
/proofs shows the outcome. Nothing is put in force by itself.

  vedette candidate strict --set detector.score_min=0.6 --set cameras.gate.rules.intruder.score_min=
  vedette candidate judge2 --set escalation.local_judge.model=qwen3-vl-8b
  vedette candidate words --cassettes now.jsonl new.jsonl
  vedette candidate                           # what waits, and its last outcome
  vedette candidate strict --now              # try it at once
  vedette candidate strict --use              # write the change into the site file, and wait no more
  vedette candidate strict --off              # wait no more

A key without a value is taken out of the site file. A cassette holds answers of a judge (docs/replay.md).

Exit code 0: done; with --now: it is better. 1: worse, or not enough is known. 2: wrong use, or the change is not right.
""",
    option("name", nargs="?", default="", metavar="NAME", help="of the candidate"),
    CONFIG,
    option("--set", dest="changes", action="append", default=[], metavar="KEY=VALUE", help="a key of the site file"),
    option("--cassettes", nargs=2, default=[], metavar="CASSETTE", help="the judge's answers now, and the candidate's"),
    switch("--now", help="try it at once, at the priority of this command"),
    switch("--use", help="write the change into the site file"),
    switch("--off", help="take it out"),
    option("--hours", type=number_between(0.01, 4.0, "hours"), default=1.0, help="of recording for --now (default: 1)"),
    json_switch(),
    run="appliance.lab.candidate_command:candidate_command",
)


APPLIANCE.command(
    "models shadow",
    "have a bundle examine live frames beside the one in force, deciding nothing",
    """\
Have an installed bundle examine one frame in five seconds that the network in force examines, in a process of its own
at the lowest priority, and compare both (docs/canary.md). First say what it costs; where memory does not allow it,
refuse and name the cure. It gives way when the appliance is hot, loaded or short of memory. A worse one is quarantined,
a better one is put in force on probation; the page /proofs shows the frames that differ.

  vedette models shadow night@4
  vedette models shadow --off

Exit code 0: it begins within seconds, or has ended. 2: not installed, in quarantine, in force, or no memory for it.
""",
    option("bundle", nargs="?", default="", metavar="NAME@VERSION", help="an installed bundle"),
    switch("--off", help="end it; what was found is kept"),
    json_switch("a JSON object instead of text"),
    run="appliance.cli.models_command:shadow_command",
)


APPLIANCE.command(
    "models rollout",
    "put an installed bundle in force on some cameras first, then on all",
    """\
Put a bundle in force on probation on the cameras that are named. Once it has answered 1,000 frames of each and was
shown to find what the network before it finds, all cameras get it. A bundle that does not come up, does not answer or
that a trial calls worse goes back by itself.

  vedette models rollout night@4 --camera gate --camera yard

Exit code 0: it has begun. 2: the bundle is not installed, is in quarantine, or another rollout is under way.
""",
    option("bundle", metavar="NAME@VERSION", help="an installed bundle"),
    option("--camera", dest="cameras", action="append", default=[], metavar="NAME", help="first; may be repeated"),
    json_switch("a JSON object instead of text"),
    run="appliance.cli.models_command:rollout_command",
)


APPLIANCE.command(
    "models rollback",
    "go back to the bundle that was in force before",
    """\
Put in force what was before: the last bundle that had proven itself, else what comes with Vedette.

  vedette models rollback
  vedette models rollback --camera gate

Exit code 0: done. 2: nothing was put in force.
""",
    _CAMERA,
    json_switch("a JSON object instead of text"),
    run="appliance.cli.models_command:rollback_command",
)


APPLIANCE.command(
    "models pin",
    "let no other bundle take the place of the one in force",
    """\
Pin the bundle in force: neither an update nor a trial replaces it, until --off.

  vedette models pin
  vedette models pin --off --camera gate

Exit code 0: done. 2: nothing was put in force.
""",
    option("--off", action="store_true", help="let it be replaced again"),
    _CAMERA,
    json_switch("a JSON object instead of text"),
    run="appliance.cli.models_command:pin_command",
)


APPLIANCE.command(
    "models export",
    "write a network that is here as the folder of a bundle",
    """\
Write a folder with the manifest, the files and the card of a network: a copy to keep, or what `publish` signs.

  vedette models export vedette-nano nano-8 --version 8

Exit code 0: written. 2: it is not (with the reason).
""",
    option("name", metavar="NAME", help="as `vedette models list` says, or NAME@VERSION of an installed bundle"),
    option("folder", type=Path, metavar="DIR", help="a new folder"),
    option("--version", default="", metavar="VERSION", help="default: after the hash of its file"),
    json_switch("a JSON object instead of text"),
    run="appliance.cli.models_command:export_command",
)


APPLIANCE.command(
    "models prune",
    "remove the bundles that nothing uses",
    """\
Remove every installed bundle that is neither in force for any camera nor what would be gone back to, and what is left
of cut downloads. The networks that come with Vedette or were pulled stay.

  vedette models prune
""",
    json_switch("a JSON object instead of text"),
    run="appliance.cli.models_command:prune_command",
)


APPLIANCE.command(
    "models publish",
    "sign bundles into a repository (for publishers)",
    """\
Sign the folders of bundles into a repository: a folder, to be copied to any web server or bucket, or pushed into a
registry. Without a bundle, all is signed anew; do that every month, since signatures expire.

  vedette models publish --new --repository repository --keys keys
  vedette models publish nano-8 --repository repository --keys keys
  vedette models publish --rotate targets --repository repository --keys keys
  vedette models publish nano-9 --repository repository --keys keys --push oci://registry.lan/models

Exit code 0: signed. 2: it is not (with the reason).
""",
    option("bundles", nargs="*", metavar="DIR", help="as `vedette models export` writes them"),
    option("--repository", type=Path, required=True, metavar="DIR", help="the repository"),
    option("--keys", type=Path, required=True, metavar="DIR", help="the private keys (PEM)"),
    option("--new", action="store_true", help="make the keys and an empty repository first"),
    option("--rotate", choices=("root", "targets", "snapshot", "timestamp"), help="replace a key of this role"),
    option("--push", default="", metavar="ADDRESS", help="then copy it into this registry"),
    json_switch("a JSON object instead of text"),
    run="appliance.cli.models_command:publish_command",
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
    run="appliance.cli.backup_command:diagnostics_command",
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
    run="appliance.cli.backup_command:backup_command",
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
    run="appliance.cli.backup_command:restore_command",
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
    json_switch(),
    run="appliance.demo.local_judge:judge_command",
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
