"""Use of a site's uplink, as a share of the bytes of its cameras: `python -m benchmarks.uplink_share --help`."""
