#!/bin/sh
# Installs Vedette on a bare Debian, Ubuntu, Raspberry Pi OS or JetPack, brings another version, and goes back.
# docs/install.md. Everything is in functions, so that half of a download does nothing.
set -eu

usage() {
  cat <<'TEXT'
install.sh VERB [OPTIONS]      as root; the kind of appliance (CPU, Intel, NVIDIA, Jetson, Raspberry Pi, Hailo) is found out

  install    user, /opt/vedette/VERSION, /etc/vedette, /var/lib/vedette, units, device rules; starts it
  upgrade    another version beside this one; the database is copied; what does not become ready is undone
  rollback   to the version before, which brings back the database where it could not read the newer one
  status     which versions there are, and how it does
  uninstall  all but site file and data, which only --purge deletes

  --from SOURCE    wheel, folder of the source or URL of a wheel (default: the repository in which this script lies)
  --sha256 HEX     of that wheel, which is refused if it is another
  --worker         the cloud worker instead of the appliance
  --appliance KIND cpu, intel, nvidia, jetson or pi, instead of what is found
  --extras A,B     of the package, instead of those for the appliance ('': none)
  --listen H:P     at the first installation: where the dashboard listens (default 0.0.0.0:8080)
  --wait SECONDS   how long a version may take until it is ready (default 180)
  --python PATH    of 3.10 to 3.13 (default: the system's)
  --no-apt         install no package of the distribution
  --no-start       start and stop nothing; for `install`: enable only
  --root DIR       into this root instead of /, as for an image of a card; starts nothing
  --systemctl CMD  what starts and stops services (with --root, for a root that runs: 'systemctl -M NAME')
  --dry-run        print what would be done

Exit code 0: done. 1: an upgrade did not become ready, or was cut off, and was undone; or what was installed does not answer
(it stays as it is); status: it does not do well. 2: it cannot be done, with the reason; found out halfway, doing it again goes on. Another: a program
that was called failed, whose words stand above.
TEXT
}

say() { printf '%s\n' "vedette: $*"; }
die() { printf '%s\n' "vedette: $*" >&2; exit 2; }
run() { if [ -n "$dry" ]; then printf '  %s\n' "$*"; else "$@"; fi; }

# --- What this is ---------------------------------------------------------------------------------------------------

vendor_among() {  # vendor_among ID FILE...: one of the files holds this PCI vendor
  wanted=$1; shift
  for each in "$@"; do [ -r "$each" ] && [ "$(cat "$each")" = "$wanted" ] && return 0; done
  return 1
}

find_kind() {
  model=''
  [ -r "$root/proc/device-tree/model" ] && model=$(tr -d '\000' <"$root/proc/device-tree/model")
  case $model in
    *'Raspberry Pi'*) echo pi; return ;;
    *Jetson* | *'NVIDIA Orin'*) echo jetson; return ;;
  esac
  if [ -e "$root/etc/nv_tegra_release" ]; then echo jetson
  elif [ -e "$root/proc/driver/nvidia/version" ]; then echo nvidia
  elif vendor_among 0x8086 "$root"/sys/class/drm/renderD*/device/vendor "$root"/sys/class/accel/accel*/device/vendor; then echo intel
  else
    vendor_among 0x10de "$root"/sys/bus/pci/devices/*/vendor &&
      say 'an NVIDIA card is here and its driver is not loaded: set up as a plain CPU; install the driver, then Vedette again' >&2
    echo cpu
  fi
}

has_hailo() { [ -e "$root/dev/hailo0" ] || vendor_among 0x1e60 "$root"/sys/bus/pci/devices/*/vendor; }

extras_for() {  # what the package brings for a kind of appliance; Hailo's and Jetson's libraries are the system's
  case $1 in
    intel) echo openvino ;;
    nvidia) if [ "$(cuda_of nvidia)" = 13 ]; then echo gpu,nvml; else echo nvml; fi ;;  # onnxruntime-gpu is for CUDA 13
    cpu) [ "$machine" = x86_64 ] && echo openvino ;;
  esac
  return 0
}

cuda_of() {  # the CUDA that driver or JetPack speak
  if [ "$1" = jetson ]; then
    case $(head -c 200 "$root/etc/nv_tegra_release" 2>/dev/null) in *'R36 '* | *'R35 '*) echo 12 ;; *) echo 13 ;; esac
  else
    release=$(sed -n 's/^NVRM version:.* \([0-9][0-9]*\)\.[0-9.]* .*/\1/p' "$root/proc/driver/nvidia/version" 2>/dev/null)
    if [ "${release:-580}" -ge 580 ]; then echo 13; else echo 12; fi
  fi
}

packages_for() {  # of the distribution; those that it does not have are left out, and said
  case $1 in
    intel) echo 'intel-media-va-driver intel-opencl-icd ffmpeg libmfx-gen1.2 libvpl2' ;;  # VAAPI by ffmpeg, QSV by oneVPL
    jetson) echo 'python3-libnvinfer ffmpeg' ;;  # JetPack's own, with the decoders nvv4l2dec
    pi) echo "ffmpeg$(if has_hailo; then echo ' hailort python3-hailort hailofw'; fi)" ;;
  esac
  return 0
}

# The unit sees no homes (ProtectHome), and so no Python of pyenv's or uv's there.
fits='import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14) or sys.base_prefix.startswith(("/root/", "/home/")))'

find_python() {
  if [ -n "$python" ]; then set -- "$python"
  else set -- python3 /usr/bin/python3 python3.13 python3.12 python3.11 python3.10; fi
  for each in "$@"; do
    "$each" -c "$fits" 2>/dev/null && { echo "$each"; return; }
  done
  die 'Python 3.10 to 3.13 is needed, outside of homes: apt install python3, or name one with --python'
}

apt_install() {
  [ -z "$apt" ] || [ -n "$root" ] || [ $# = 0 ] && return 0
  command -v apt-get >/dev/null 2>&1 || { say "no apt here; install yourself: $*"; return 0; }
  wanted=''
  for each in "$@"; do
    dpkg-query -W -f '${Status}' "$each" 2>/dev/null | grep -q 'install ok' && continue
    # A fresh image has no list of packages, and an old one names what the mirror has no more.
    [ -n "$updated" ] || { updated=1; run apt-get update -q || say 'the list of packages could not be brought up to date'; }
    if apt-cache show "$each" >/dev/null 2>&1; then wanted="$wanted $each"; else say "this distribution has no $each"; fi
  done
  # shellcheck disable=SC2086
  [ -z "$wanted" ] || run env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $wanted
}

# --- A version in its folder ----------------------------------------------------------------------------------------

get_wheel() {  # sets wheel and version
  case $from in
    '') here=$(dirname "$0")/..
        if [ ! -f "$here/deploy/install.sh" ] || [ ! -f "$here/pyproject.toml" ]; then
          die 'name what to install: --from WHEEL (this script does not lie in the repository)'
        fi
        from=$here ;;
  esac
  case $from in
    *.whl) wheel=$from ;;
    *) wheel='' ;;
  esac
  if [ -z "$wheel" ] || [ ! -f "$wheel" ]; then  # a folder or an URL: pip makes or brings the wheel
    run "$interpreter" -m venv "$work/tool"
    run "$work/tool/bin/python" -m pip --disable-pip-version-check wheel -q --no-deps -w "$work" "$from"
    wheel=$(find "$work" -maxdepth 1 -name 'vedette-*.whl')
    if [ -n "$dry" ]; then version=VERSION wheel=vedette-VERSION-py3-none-any.whl; return; fi
    [ -n "$wheel" ] || die "$from made no wheel of vedette"
  fi
  if [ -n "$sha256" ]; then
    [ "$(sha256sum <"$wheel")" = "$sha256  -" ] || die "$wheel is not the file that was named: its SHA-256 is another"
  fi
  version=$(basename "$wheel" | sed -n 's/^vedette-\([0-9][A-Za-z0-9.+_!]*\)-py3-none-any\.whl$/\1/p')
  [ -n "$version" ] || die "$wheel is no wheel of vedette"
}

pip_install() { run "$place/bin/python" -m pip --disable-pip-version-check --no-input install -q "$@"; }

choose_folder() {  # sets folder, in $opt, and what it is to be built of, which its .whole holds; card: an extra for TensorRT
  card=''
  if [ "$unit" = vedette ]; then
    case $kind in
      jetson) card=jetson ;;  # TensorRT is JetPack's
      nvidia) card=tensorrt ;;
    esac
    [ -z "$card" ] || [ "$(cuda_of "$kind")" = 13 ] || card=$card-cu12
  fi
  digest=$(sha256sum "$wheel" 2>/dev/null | cut -c1-64)
  built="$digest, $("$interpreter" -V 2>&1), $kind${card:+ $card}, $extras"
  for folder in "$version" "$version~2"; do
    [ "$(cat "$opt/$folder/.whole" 2>/dev/null)" != "$built" ] || return 0
  done
  folder=$version
  # What is in use stays until the other is whole.
  case $folder in "$(read_link current)" | "$(read_link previous)") folder=$version~2 ;; esac
}

build_version() {  # $opt/$folder with everything in it; what a kill left half is made again
  place=$opt/$folder
  [ "$(cat "$place/.whole" 2>/dev/null)" != "$built" ] || return 0
  run rm -rf "$place"
  site_packages=''
  [ "$kind" = jetson ] && site_packages=--system-site-packages  # TensorRT comes with JetPack, for its Python only
  # shellcheck disable=SC2086
  run "$interpreter" -m venv $site_packages "$place"
  locks=''
  if "$interpreter" -c 'import sys; sys.exit(sys.version_info < (3, 11))' && [ -z "$site_packages" ]; then
    unpack_locks && locks="-r $work/requirements.lock"
  fi
  named=''
  for each in $(echo "$extras" | tr ',' ' '); do
    if [ -n "$locks" ] && [ -f "$work/requirements-$each.lock" ]; then locks="$locks -r $work/requirements-$each.lock"
    else named="$named${named:+,}$each"; fi
  done
  if [ -z "$locks" ] && [ "$unit" = vedette ]; then  # the lock has these two
    for each in mqtt notify; do
      case ",$named," in *",$each,"*) ;; *) named="$named${named:+,}$each" ;; esac
    done
  fi
  # shellcheck disable=SC2086
  {
    [ -z "$locks" ] || pip_install --require-hashes $locks
    if [ -n "$locks" ] && [ -z "$named" ]; then pip_install --no-deps "$wheel"
    else pip_install "$wheel${named:+[$named]}"; fi
  }
  # TensorRT's libraries are no wheels on the usual index: their build fetches NVIDIA's, which a closed site cannot reach.
  [ -z "$card" ] || pip_install "$wheel[$card]" || {
    built="$built, without $card"  # so the next installation tries again
    say "no vedette[$card]: detector.backend tensorrt will refuse to start"
  }
  case ",$extras," in *,gpu,*)  # onnxruntime and onnxruntime-gpu overwrite each other's files
    run "$place/bin/python" -m pip uninstall -q -y onnxruntime onnxruntime-gpu
    pip_install 'onnxruntime-gpu[cuda,cudnn]>=1.27,<2' ;;
  esac
  [ -n "$dry" ] || echo "$built" >"$place/.whole"
}

unpack_locks() {
  [ -n "$dry" ] && return 0
  "$interpreter" - "$wheel" "$work" <<'PYTHON'
import pathlib, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    names = [each for each in wheel.namelist() if each.startswith("appliance/deploy/requirements") and each.endswith(".lock")]
    for each in names:
        (pathlib.Path(sys.argv[2]) / pathlib.Path(each).name).write_bytes(wheel.read(each))
sys.exit(not names)
PYTHON
}

# --- What a version brings to the system ----------------------------------------------------------------------------

put() {  # put MODE FILE TO
  run mkdir -p "$(dirname "$3")"
  run install -m "$1" "$2" "$3"
}

put_files() {  # put_files VERSION: units, device rules and commands are those of the version that runs
  files=$opt/$1/deploy
  [ -n "$dry" ] || files=$(ask "$1" files)
  put 0644 "$files/systemd/vedette.sysusers" "$root/etc/sysusers.d/vedette.conf"
  put 0644 "$files/udev/70-vedette.rules" "$root/etc/udev/rules.d/70-vedette.rules"
  put 0755 "$files/install.sh" "$root/usr/local/sbin/vedette-install"
  put 0644 "$files/systemd/$unit.service" "$root/etc/systemd/system/$unit.service"
  if [ "$unit" = vedette ]; then
    put 0644 "$files/systemd/accelerator.d/$kind.conf" "$root/etc/systemd/system/vedette.service.d/50-accelerator.conf"
  fi
  for each in vedette vedette-worker; do
    run mkdir -p "$root/usr/local/bin"
    run ln -sfn "/opt/vedette/current/bin/$each" "$root/usr/local/bin/$each"
  done
}

make_user() {
  run systemd-sysusers ${root:+"--root=$root"} "$root/etc/sysusers.d/vedette.conf" || die 'the user vedette could not be made'
  [ -n "$dry" ] || owner=$(sed -n 's/^vedette:[^:]*:\([0-9]*\):\([0-9]*\):.*/\1:\2/p' "$root/etc/passwd")
}

own() { if [ -n "$owner" ] && [ "$(id -u)" = 0 ]; then run chown -h "$owner" "$@"; fi; }

make_folders() {
  run mkdir -p "$root/etc/vedette" "$root/var/lib/vedette"
  run chmod 0750 "$root/etc/vedette"
  run chmod 0700 "$root/var/lib/vedette"
  own "$root/etc/vedette" "$root/var/lib/vedette"
  if [ ! -e "$root/etc/vedette/environment" ]; then
    echo '# NAME=value, one a line, for the names in the site file that stand in braces. Read by systemd, for root alone.' >"$work/environment"
    put 0600 "$work/environment" "$root/etc/vedette/environment"
  fi
  [ "$unit" = vedette ] && [ ! -e "$site" ] && [ ! -L "$site" ] || return 0
  name=$(uname -n | tr '[:upper:]' '[:lower:]' | sed 's/[^a-z0-9-]/-/g; s/^-*//' | cut -c1-32)
  {
    echo '# Written by the installation. The dashboard changes it, and you may: vedette check says what is wrong.'
    echo "site: {name: \"${name:-site}\"}"  # in quotes: YAML takes 42 for a number and no for false
    echo 'storage: {dir: /var/lib/vedette}'
    echo "dashboard: {host: \"${listen%:*}\", port: ${listen##*:}}"
    echo 'cameras: {}'
  } >"$work/site.yaml"
  put 0640 "$work/site.yaml" "$site"
  own "$site"
}

# --- Services -------------------------------------------------------------------------------------------------------

ctl() {  # without the lock, which a service would hold for ever
  # shellcheck disable=SC2086
  [ -z "$systemctl" ] || run $systemctl "$@" 9>&-
}

reload() {
  ctl daemon-reload
  [ -n "$root" ] || ! command -v udevadm >/dev/null 2>&1 || { run udevadm control --reload && run udevadm trigger; } || true
}

ask() {  # ask VERSION ARGUMENTS...: appliance.upgrade of that version, as the user whose data it is
  of=$1; shift
  set -- "$opt/$of/bin/python" -I -m appliance.upgrade "$@"
  if [ -n "$owner" ] && [ "$(id -u)" = 0 ]; then
    set -- setpriv --reuid "${owner%:*}" --regid "${owner#*:}" --clear-groups -- "$@"
  fi
  (cd / && "$@" 9>&-)
}

is_running() { [ -n "$systemctl" ] && [ -z "$dry" ] && ctl is-active --quiet "$unit"; }

cannot_be_asked() {  # its dashboard is off; a camera that is switched off stands in the file alike
  grep -q 'enabled: *false' "$site" || return 1
  answer=0
  ask "$1" state "$site" >/dev/null 2>&1 || answer=$?
  [ "$answer" = 2 ]
}

wait_until() {  # wait_until VERSION STATE: true when it comes in time; a unit that gave up is not waited for
  [ -n "$systemctl" ] && [ -z "$dry" ] || return 0
  left=$wait_s
  if [ "$unit" != vedette ] || cannot_be_asked "$1"; then
    sleep "$([ "$left" -lt 10 ] && echo "$left" || echo 10)"
    is_running; return
  fi
  while :; do
    slice=$([ "$left" -lt 10 ] && echo "$left" || echo 10)
    ask "$1" state "$site" --wait "$slice" --until "$2" >/dev/null && return 0
    left=$((left - slice))
    [ "$left" -gt 0 ] || return 1
    ctl is-failed --quiet "$unit" && return 1
  done
}

point() {  # point LINK VERSION, in one step
  run ln -sfn "$2" "$opt/$1.new"
  run mv -T "$opt/$1.new" "$opt/$1"
}

read_link() { [ ! -L "$opt/$1" ] || readlink "$opt/$1"; }

journal_end() {
  [ -n "$root" ] || ! command -v journalctl >/dev/null 2>&1 || journalctl -u "$unit" -n 25 --no-pager -o cat >&2 || true
}

# --- Verbs ----------------------------------------------------------------------------------------------------------

begin() {
  [ -n "$root" ] || [ -n "$dry" ] || [ "$(id -u)" = 0 ] || die 'this changes the system: run it as root (sudo)'
  if [ -n "$dry" ]; then return; fi
  command -v systemd-sysusers >/dev/null 2>&1 || die 'systemd is not installed here: in a container, use the image'
  [ -z "$needs_systemd" ] || [ -d /run/systemd/system ] ||
    die 'systemd does not run here, so nothing can be started: --no-start leaves that out; in a container, use the image'
  mkdir -p "$opt"
  command -v flock >/dev/null 2>&1 || return 0
  exec 9>"$opt/.lock"
  flock -n 9 || die 'another installation is at work'
}

prepare() {
  apt_install python3-venv
  interpreter=$(find_python)
  # shellcheck disable=SC2046
  apt_install $(packages_for "$kind")
  get_wheel
  choose_folder
}

interrupted() {
  [ ! -e "$opt/changing" ] || die "an upgrade was cut off ($(cat "$opt/changing")): go back first, with \`vedette-install rollback\`"
}

choices() {  # what was chosen at the installation holds for later versions
  chosen=$opt/choices
  if [ -r "$chosen" ]; then
    read -r known_kind known_unit known_extras <"$chosen" || true
    [ -n "$kind" ] || kind=$known_kind
    [ -n "$unit" ] || unit=$known_unit
    [ "$unit" = "$known_unit" ] || die "$known_unit is installed here: one of the two a machine, the other in a container"
    [ "$extras" != unset ] || extras=$known_extras
  fi
  [ -n "$kind" ] || kind=$(find_kind)
  case $kind in cpu | intel | nvidia | jetson | pi) ;; *) die "--appliance is cpu, intel, nvidia, jetson or pi, and not $kind" ;; esac
  unit=${unit:-vedette}
  [ "$extras" != unset ] || { if [ "$unit" = vedette ]; then extras=$(extras_for "$kind"); else extras=cloud,s3; fi; }
}

do_install() {
  interrupted
  current=$(read_link current)
  prepare
  [ -z "$current" ] || [ "${current%~*}" = "$version" ] || die "${current%~*} is installed: \`upgrade\` brings another version and can go back"
  say "Vedette $version for $kind, in $opt/$folder"
  build_version
  put_files "$folder"
  make_user
  make_folders
  [ -n "$dry" ] || echo "$kind $unit $extras" >"$opt/choices"
  point current "$folder"
  reload
  # shellcheck disable=SC2086
  if [ -n "$systemctl" ]; then run $systemctl enable "$unit"
  else run systemctl "--root=${root:-/}" enable "$unit"; fi
  [ -z "$systemctl" ] && { say 'installed; nothing was started'; return; }
  if [ "$unit" != vedette ] && [ ! -e "$root/etc/vedette/worker.yaml" ]; then
    say "write /etc/vedette/worker.yaml ($files/vedette-worker.example.yaml has every key), then: systemctl start $unit"; return
  fi
  ctl restart "$unit" || true  # whoever waits says why
  wait_until "$folder" alive || { journal_end; say "it does not answer yet: journalctl -u $unit"; return 1; }
  case $folder in *~*) run rm -rf "$opt/$version" ;; *) run rm -rf "$opt/$version~2" ;; esac
  if [ "$unit" != vedette ]; then say "it runs; what it does: journalctl -u $unit"; return; fi
  say 'it runs; the address and the code for the first user: journalctl -u vedette | grep "Set this appliance up"'
}

do_upgrade() {
  interrupted
  current=$(read_link current)
  [ -n "$current" ] || die 'nothing is installed here: that is what install does'
  load_owner
  prepare
  [ "${current%~*}" != "$version" ] || { say "$version is here already; \`install\` makes it anew, of another wheel or other extras"; return; }
  say "from ${current%~*} to $version"
  build_version
  [ -n "$dry" ] || ask "$folder" files >/dev/null || die "the user vedette cannot run $opt/$folder: nothing was changed"
  want=alive running=''
  if is_running; then
    running=1
    if [ "$unit" = vedette ] && ask "$current" state "$site" >/dev/null 2>&1; then want=ready
    else say "${current%~*} is not ready now, so $version need only run"; fi
  fi
  [ -n "$dry" ] || { echo "$current to $version" >"$opt/changing"; undo=1; }
  ctl stop "$unit"
  kept=''
  if [ "$unit" = vedette ] && [ -z "$dry" ] && [ -e "$site" ]; then
    kept=$(ask "$current" keep "$site" "$version") || {
      undo=''
      say 'the database could not be copied; nothing was changed'; rm -f "$opt/changing"
      [ -z "$running" ] || ctl start "$unit"
      exit 2
    }
  fi
  [ -n "$dry" ] || printf '%s\n' "$kept" >"$opt/kept"
  point previous "$current"
  put_files "$folder"
  point current "$folder"
  reload
  [ -z "$running" ] || ctl start "$unit" || true
  if [ -z "$running" ] || wait_until "$folder" "$want"; then
    undo=''
    run rm -f "$opt/changing"
    [ -z "$kept" ] || run rm -f "$(dirname "$kept")/upgrade-failed"
    forget_versions
    say "$version is in force${running:+ and ${want}}; \`vedette-install rollback\` goes back to ${current%~*}"
    return
  fi
  say "$version did not become $want within ${wait_s} s: going back to ${current%~*}" >&2
  journal_end
  note_failure "$version"
  go_back
  exit 1
}

do_rollback() {
  load_owner
  cut_from='' word=''
  [ ! -r "$opt/changing" ] || read -r cut_from word _ <"$opt/changing"
  if [ "$word" = to ] && [ "$(read_link current)" = "$cut_from" ]; then
    say "${cut_from%~*} is still in force: starting it"
    [ "$(read_link previous)" != "$cut_from" ] || run rm -f "$opt/previous" "$opt/kept"
    put_files "$cut_from"
    reload
    ctl start "$unit" || true
    run rm -f "$opt/changing"
    return
  fi
  [ -n "$(read_link previous)" ] || die 'there is no version to go back to'
  go_back
}

finish() {  # an upgrade that ends in any other way than it should is undone
  code=$?
  trap - EXIT
  if [ -n "$undo" ]; then
    undo=''
    say 'the upgrade was cut off' >&2
    (do_rollback)
    [ $code != 0 ] || code=1
  fi
  rm -rf "$work"
  exit $code
}

note_failure() {  # the appliance reads it and says it on every page, until an upgrade succeeds
  [ -z "$kept" ] || { echo "$1" >"$(dirname "$kept")/upgrade-failed" && chmod 644 "$(dirname "$kept")/upgrade-failed"; } || true
}

go_back() {  # every step may be the last one before a power cut: all of them again is right
  undo=''
  newer=$(read_link current) older=$(read_link previous)
  [ -n "$dry" ] || echo "$newer back to $older" >"$opt/changing"
  ctl stop "$unit"
  kept=$(cat "$opt/kept" 2>/dev/null || true)
  if [ -n "$kept" ] && [ -z "$dry" ]; then
    put_back=$(ask "$older" put-back "$site" "$kept") || die "$older could not take its data back; mend that, then: vedette-install rollback"
    [ -z "$put_back" ] || say "$put_back"
  fi
  put_files "$older"
  point current "$older"
  reload
  ctl start "$unit" || true
  wait_until "$older" alive || { journal_end; die "$older does not answer either: journalctl -u $unit"; }
  run rm -f "$opt/previous" "$opt/kept" "$opt/changing"
  say "${older%~*} is in force again"
}

forget_versions() {  # all but this one and the one before
  for each in "$opt"/*/; do
    each=$(basename "$each")
    case $each in current | previous | "$(read_link current)" | "$(read_link previous)" | '*') ;; *) run rm -rf "${opt:?}/$each" ;; esac
  done
}

load_owner() { owner=$(sed -n 's/^vedette:[^:]*:\([0-9]*\):\([0-9]*\):.*/\1:\2/p' "$root/etc/passwd" 2>/dev/null || true); }

do_status() {
  load_owner
  current=$(read_link current)
  [ -n "$current" ] || { say 'not installed'; return 1; }
  say "version ${current%~*}, before it $(read_link previous | sed 's/~.*//' | grep . || echo none), appliance $kind"
  [ ! -e "$opt/changing" ] || say "cut off: $(cat "$opt/changing"); \`vedette-install rollback\` goes back"
  [ -z "$systemctl" ] || is_running || { say "$unit does not run"; return 1; }
  [ "$unit" = vedette ] || return 0
  code=0
  ask "$current" state "$site" || code=1
  return $code
}

do_uninstall() {
  for each in vedette vedette-worker; do
    [ -e "$root/etc/systemd/system/$each.service" ] || continue
    ctl disable --now "$each" || true
    run rm -f "$root/etc/systemd/system/$each.service" "$root/etc/systemd/system/multi-user.target.wants/$each.service"
  done
  run rm -rf "$root/etc/systemd/system/vedette.service.d/50-accelerator.conf" "$root/etc/udev/rules.d/70-vedette.rules" \
    "$root/etc/sysusers.d/vedette.conf" "$root/usr/local/bin/vedette" "$root/usr/local/bin/vedette-worker" \
    "$root/usr/local/sbin/vedette-install" "$root/var/cache/vedette" "$opt"
  reload
  if [ -n "$purge" ]; then
    run rm -rf "$root/etc/vedette" "$root/var/lib/vedette"
    [ -n "$root" ] || run userdel vedette || true
    say 'uninstalled, with site file and data; a storage.dir elsewhere was not touched'
  else
    say 'uninstalled; /etc/vedette and /var/lib/vedette are as they were (--purge deletes them)'
  fi
}

main() {
  root='' dry='' from='' sha256='' kind='' extras=unset listen=0.0.0.0:8080 wait_s=180 python='' apt=1 start=1 purge=''
  systemctl=unset unit='' undo='' owner='' kept='' files='' updated='' folder=''
  [ $# -gt 0 ] || { usage >&2; exit 2; }
  verb=$1; shift
  while [ $# -gt 0 ]; do
    case $1 in
      --from | --sha256 | --appliance | --box | --extras | --listen | --wait | --python | --root | --systemctl)
        [ $# -gt 1 ] || die "$1 wants a value"
        case $1 in
          --from) from=$2 ;; --sha256) sha256=$2 ;; --appliance | --box) kind=$2 ;; --extras) extras=$2 ;; --listen) listen=$2 ;;
          --wait) wait_s=$2 ;; --python) python=$2 ;; --root) root=${2%/} ;; --systemctl) systemctl=$2 ;;
        esac
        shift 2 ;;
      --worker) unit=vedette-worker; shift ;;
      --no-apt) apt=''; shift ;;
      --no-start) start=''; shift ;;
      --purge) purge=1; shift ;;
      --dry-run) dry=1; shift ;;
      *) die "what is $1? (install.sh --help)" ;;
    esac
  done
  needs_systemd=''
  [ "$systemctl" != unset ] || { systemctl=$([ -n "$root" ] || echo systemctl); needs_systemd=$systemctl; }
  [ -n "$start" ] || systemctl='' needs_systemd=''
  case $wait_s in *[!0-9]* | '') die '--wait wants whole seconds' ;; esac
  case $listen in *:*[!0-9]* | *[!0-9a-fA-F.:]* | *: | [!0-9a-fA-F:]*) die '--listen wants ADDRESS:PORT' ;; *:*) ;; *.*) listen=$listen:8080 ;; *) die '--listen wants ADDRESS:PORT' ;; esac
  opt=$root/opt/vedette site=$root/etc/vedette/site.yaml machine=$(uname -m)
  choices
  work=$(mktemp -d)
  trap finish EXIT
  trap 'exit 130' INT TERM
  case $verb in
    install | upgrade | rollback | uninstall) begin; "do_$verb" ;;
    status) do_status ;;
    -h | --help | help) usage ;;
    *) die "what is $verb? (install.sh --help)" ;;
  esac
}

main "$@"
