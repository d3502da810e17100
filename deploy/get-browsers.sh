#!/bin/sh
# Bring Chromium and Firefox from the distribution for the browser tests. Without root it only says so: what needs one skips.
set -u
has() { for name in "$@"; do command -v "$name" >/dev/null 2>&1 && return; done; return 1; }
# Firefox has no H.264 of its own: it takes the system's FFmpeg, whose package is named by its version.
ffmpeg() { apt-cache pkgnames libavcodec | grep -E '^libavcodec[0-9]+$' | sort -V | tail -1; }
missing=""
has chromium chromium-browser google-chrome || missing="chromium fonts-dejavu-core"
# Its engine without windows, in which the same tests take half of the CPU time; not every distribution has it.
if ! has chromium-headless-shell; then
  test -n "$missing" || apt-cache show chromium-headless-shell >/dev/null 2>&1 && missing="$missing chromium-headless-shell"
fi
has firefox-esr firefox || missing="$missing firefox-esr"
# Playwright's own runtime asks for it, and a bare system has it not.
ldconfig -p 2>/dev/null | grep -q 'libatomic\.so\.1' || missing="$missing libatomic1"
test -n "$missing" || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
  echo "not found: $missing. Browser tests run without it, or skip; to bring it: sudo apt-get install $missing" >&2
  exit 0
fi
echo "installing from the distribution for the browser tests: $missing"
apt-get update -qq >/dev/null
for package in $missing; do # one by one: not every distribution has each
  case $package in firefox-esr) package="$package $(ffmpeg)" ;; esac
  # shellcheck disable=SC2086  # two packages
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $package >/dev/null ||
    echo "$package could not be installed: the tests run without it, or skip" >&2
done
exit 0
