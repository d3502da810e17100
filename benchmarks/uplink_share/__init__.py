"""What a site puts on its uplink, as a share of what its cameras send: `python -m benchmarks.uplink_share --help`."""
