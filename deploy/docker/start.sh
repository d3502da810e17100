#!/bin/sh
# Starts the appliance in a container; at the first start there is no site file, and the browser makes the rest of it.
set -eu
umask 077  # as the systemd unit has it: the site file may hold passwords
site=/etc/vedette/site.yaml
if [ ! -e "$site" ]; then
  printf '%s\n' 'site: {name: site}' 'storage: {dir: /var/lib/vedette}' 'dashboard: {host: 0.0.0.0}' 'cameras: {}' >"$site.new"
  mv "$site.new" "$site"
fi
exec vedette run --config "$site"
