"""The link to a nats-server; shared by the uplink and the worker."""
