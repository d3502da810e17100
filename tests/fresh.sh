#!/bin/sh
# `make demo` up to its first verdict, then `make test`, as a newcomer has them: on a bare root of this distribution, from a
# clone of what is committed, in namespaces of its own, with nothing of this machine but its kernel and its network.
#
#   tests/fresh.sh [demo] [test] [quick]      as root; `make fresh`; ARGS of `make test` in $ARGS
#
# Packages come from where this machine has them: its sources of apt, its settings of pip, its certificates and proxies.
# The bare root is kept in $FRESH (default vedette-data/fresh) and never written to: each run has a layer of its own over it.
set -eu
say() { printf '%s\n' "fresh: $*"; }
die() { say "$*" >&2; exit 2; }
alerts_s_max=${ALERTS_S_MAX:-900} # on a busy machine; the first comes half a minute after the start on an idle one

inside() { # inside WHAT...: as PID 1's child in the bare root
  cd /root/vedette
  for what in "$@"; do
    began=$(date +%s)
    case $what in
      demo) demo ;;
      test) make test ARGS="${ARGS:-}" ;;
      quick) make test-quick ARGS="${ARGS:-}" ;;
    esac
    say "make $what: $(($(date +%s) - began)) s"
  done
}

demo() { # ends well once an alert has its verdict
  make demo >/tmp/demo.log 2>&1 &
  child=$!
  left=$alerts_s_max
  until grep -q '  verdict  ' /tmp/demo.log; do
    if ! kill -0 $child 2>/dev/null || [ "$left" = 0 ]; then tail -40 /tmp/demo.log; die 'no verdict came'; fi
    if grep -q 'http://' /tmp/demo.log; then left=$((left - 1)); fi # installing is not counted
    sleep 1
  done
  cat /tmp/demo.log
  pkill -TERM -f 'bin/vedette demo' # the only one of this namespace
  wait $child || true
}

if [ "${1:-}" = --inside ]; then shift; inside "$@"; exit; fi

[ $# -gt 0 ] || set -- demo test
[ "$(id -u)" = 0 ] || die 'it makes a root of its own: run it as root (sudo make fresh)'
for need in debootstrap unshare git; do command -v $need >/dev/null || die "no $need: apt install debootstrap util-linux git"; done
cd "$(dirname "$0")/.."
fresh=${FRESH:-$PWD/vedette-data/fresh}
mkdir -p "$fresh"
# shellcheck disable=SC1091
. /etc/os-release
base=$fresh/$VERSION_CODENAME
if [ ! -e "$base/.whole" ]; then
  # shellcheck disable=SC2016  # apt's own names
  mirror=$(apt-get indextargets --format '$(SITE) $(RELEASE) $(COMPONENT)' | sed -n "s/ $VERSION_CODENAME main\$//p" | head -1)
  say "a bare $PRETTY_NAME, in $base"
  rm -rf "$base"
  # What README.md asks for, and no more; procps and the like come with any machine.
  debootstrap --variant=minbase --include=ca-certificates,git,make,procps,python3,python3-venv,iproute2 "$VERSION_CODENAME" "$base" "$mirror" >"$fresh/debootstrap.log" ||
    die "debootstrap failed: $fresh/debootstrap.log"
  touch "$base/.whole"
fi
run=$fresh/run
rm -rf "$run"
mkdir -p "$run/upper/root" "$run/work" "$run/root"
git clone -q --no-local . "$run/upper/root/vedette"
upper=$run/upper
for path in /etc/resolv.conf /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
  if [ -r "$path" ]; then mkdir -p "$upper$(dirname "$path")" && cp -L "$path" "$upper$path"; fi
done
mkdir -p "$upper/etc/apt"
: >"$upper/etc/apt/sources.list" # debootstrap's own
cp -rL /etc/apt/sources.list* /etc/apt/apt.conf.d "$upper/etc/apt/" 2>/dev/null || true
[ ! -d /usr/share/keyrings ] || { mkdir -p "$upper/usr/share" && cp -rL /usr/share/keyrings "$upper/usr/share/"; }
kept=$(env | sed -nE 's/^((PIP_(INDEX_URL|EXTRA_INDEX_URL|CERT|TRUSTED_HOST|DEFAULT_TIMEOUT)|SSL_CERT_FILE|REQUESTS_CA_BUNDLE|https?_proxy|no_proxy|HTTPS?_PROXY|NO_PROXY)=[^ ]*)$/\1/p')
# No process outlives the namespace, and no mount leaves it.
code=0
# shellcheck disable=SC2016,SC2086
unshare --mount --pid --ipc --uts --fork --kill-child env -i $kept ARGS="${ARGS:-}" ALERTS_S_MAX="$alerts_s_max" HOME=/root LANG=C.UTF-8 \
  PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin BASE="$base" RUN="$run" sh -euc '
  mount --make-rprivate /
  mount -t overlay overlay -o "lowerdir=$BASE,upperdir=$RUN/upper,workdir=$RUN/work" "$RUN/root"
  cd "$RUN/root"
  mount -t proc proc proc
  mount --rbind /sys sys
  mount -t tmpfs -o mode=755 none dev
  mkdir dev/pts dev/shm
  for each in null zero full random urandom tty; do touch dev/$each; mount --bind /dev/$each dev/$each; done
  ln -s /proc/self/fd dev/fd; ln -s fd/0 dev/stdin; ln -s fd/1 dev/stdout; ln -s fd/2 dev/stderr
  mount -t devpts -o newinstance,ptmxmode=0666 none dev/pts; ln -s pts/ptmx dev/ptmx
  mount -t tmpfs -o mode=1777 none dev/shm
  hostname fresh
  mkdir -p mnt/old; pivot_root . mnt/old; cd /; umount -l /mnt/old # in a chroot there are no namespaces of users
  exec sh /root/vedette/tests/fresh.sh --inside "$@"' sh "$@" || code=$?
[ $code = 0 ] || { say "failed ($code); what it left: $run/upper"; exit $code; }
rm -rf "$run"
say 'all done'
