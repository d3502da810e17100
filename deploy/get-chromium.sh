#!/bin/sh
# Bring Chromium from the distribution for the browser tests. Without root it only says so: those tests then skip.
set -u
for name in chromium chromium-browser google-chrome; do
  command -v "$name" >/dev/null 2>&1 && exit 0
done
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
  echo "no Chromium found: the browser tests will skip; to run them: sudo apt-get install chromium" >&2
  exit 0
fi
echo "installing Chromium from the distribution for the browser tests"
(apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core) >/dev/null ||
  echo "Chromium could not be installed: the browser tests will skip" >&2
exit 0
