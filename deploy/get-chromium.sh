#!/bin/sh
# Bring Chromium from the distribution for the browser tests: its headless shell, which costs less, or the browser
# itself. Without root it only says so: those tests then skip.
set -u
command -v chromium-headless-shell >/dev/null 2>&1 && exit 0
have_browser() {
  for name in chromium chromium-browser google-chrome; do
    command -v "$name" >/dev/null 2>&1 && return 0
  done
  return 1
}
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
  have_browser || echo "no Chromium found: the browser tests will skip; to run them: sudo apt-get install chromium" >&2
  exit 0
fi
bring() {
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$1" fonts-dejavu-core >/dev/null 2>&1
}
echo "installing Chromium from the distribution for the browser tests"
apt-get update -qq >/dev/null 2>&1
bring chromium-headless-shell || have_browser || bring chromium ||
  echo "Chromium could not be installed: the browser tests will skip" >&2
exit 0
