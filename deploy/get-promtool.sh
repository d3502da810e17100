#!/bin/sh
# Bring promtool from the distribution for the tests of the Prometheus rules. Without root it only says so: those tests
# then skip. Only the program is taken out of the package: no Prometheus is installed or started.
set -u
command -v promtool >/dev/null 2>&1 && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
  echo "no promtool found: the tests of the Prometheus rules will skip; to run them: sudo apt-get install prometheus" >&2
  exit 0
fi
echo "taking promtool out of the distribution's package prometheus for the tests of the rules"
dir=$(mktemp -d) && chmod 755 "$dir" && (cd "$dir" && apt-get update -qq && apt-get download -qq prometheus &&
  dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin/promtool && install -m 755 usr/bin/promtool /usr/local/bin/promtool) >/dev/null 2>&1 ||
  echo "promtool could not be brought: the tests of the Prometheus rules will skip" >&2
rm -rf "$dir"
exit 0
