"""An attack on all that listens: a real `vedette run`, a worker and a nats-server on loopback."""
