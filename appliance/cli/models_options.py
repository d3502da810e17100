"""Options and help of the commands for networks, and for candidates tried beside them: models, advise, candidate."""

from __future__ import annotations

from pathlib import Path

from appliance.cli.command_table import CONFIG, JSON, CommandTable, json_switch, number_between, option, switch

MODELS = CommandTable()
_SITE_FILE = option(
    "--config", dest="site_file", type=Path, metavar="FILE", help="the site file (default: ./site.yaml)"
)
_CAMERA = option("--camera", default="", metavar="NAME", help="only this camera")

MODELS.command(
    "models",
    "list, download and verify the networks that Vedette knows",
    """\
List, download and verify the networks that `detector.model` knows by name (models.toml): those that come with Vedette,
and others under a free licence, each at a pinned commit with its sha256. A checkout exports others (Ultralytics,
RF-DETR, D-FINE, DEIM; FP16 and INT8 variants): `python -m models.export --help`. `vedette scenario compare` measures
whether one is good enough.
""",
)


MODELS.command(
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


MODELS.command(
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


MODELS.command(
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


MODELS.command(
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
    _SITE_FILE,
    JSON,
    run="appliance.cli.models_command:install_command",
)


MODELS.command(
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
    JSON,
    run="appliance.lab.prove_command:prove_command",
)


MODELS.command(
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
    JSON,
    run="appliance.lab.prove_command:advise_command",
)


MODELS.command(
    "candidate",
    "try other settings, thresholds, prompts or models of verdicts at night",
    """\
Keep changed settings, or another prompt or model of verdicts, and have a running appliance try them each night until
they are better or worse than what is in force (docs/canary.md). The alerts that people reviewed decide. The page
/proofs shows the outcome. Nothing is put in force by itself.

  vedette candidate strict --set detector.score_min=0.6 --set cameras.gate.rules.door.score_min= --config site.yaml
  vedette candidate judge2 --set escalation.local_judge.model=qwen3-vl-8b --config site.yaml
  vedette candidate words --cassettes now.jsonl new.jsonl --config site.yaml
  vedette candidate --config site.yaml                # what waits, and its last outcome
  vedette candidate strict --now --config site.yaml   # try it at once
  vedette candidate strict --use --config site.yaml   # write the change into the site file, and wait no more
  vedette candidate strict --off --config site.yaml   # wait no more

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
    JSON,
    run="appliance.lab.candidate_command:candidate_command",
)


MODELS.command(
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
    JSON,
    run="appliance.cli.models_command:shadow_command",
)


MODELS.command(
    "models rollout",
    "put an installed bundle in force on some cameras first, then on all",
    """\
Put a bundle in force on probation on the cameras that are named. Once it has answered 1,000 frames of each and was
shown to find what the network before it finds, all cameras get it. A bundle that does not come up, does not answer or
that a trial calls worse goes back by itself.

  vedette models rollout night@4 --camera gate --camera yard

A camera that the site file, if it is there, does not have is refused.

Exit code 0: it has begun. 2: the bundle is not installed, is in quarantine, or another rollout is under way.
""",
    option("bundle", metavar="NAME@VERSION", help="an installed bundle"),
    option("--camera", dest="cameras", action="append", default=[], metavar="NAME", help="first; may be repeated"),
    _SITE_FILE,
    JSON,
    run="appliance.cli.models_command:rollout_command",
)


MODELS.command(
    "models rollback",
    "go back to the bundle that was in force before",
    """\
Put in force what was before: the last bundle that had proven itself, else what comes with Vedette.

  vedette models rollback
  vedette models rollback --camera gate

Exit code 0: done. 2: nothing was put in force.
""",
    _CAMERA,
    JSON,
    run="appliance.cli.models_command:rollback_command",
)


MODELS.command(
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
    JSON,
    run="appliance.cli.models_command:pin_command",
)


MODELS.command(
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
    JSON,
    run="appliance.cli.models_command:export_command",
)


MODELS.command(
    "models prune",
    "remove the bundles that nothing uses",
    """\
Remove every installed bundle that is neither in force for any camera nor what would be gone back to, nor named by the
site file, and what is left of cut downloads. The networks that come with Vedette or were pulled stay.

  vedette models prune --config /etc/vedette/site.yaml
""",
    _SITE_FILE,
    JSON,
    run="appliance.cli.models_command:prune_command",
)


MODELS.command(
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
    JSON,
    run="appliance.cli.models_command:publish_command",
)
