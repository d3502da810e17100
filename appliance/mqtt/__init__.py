"""Publishes states and alerts to home automation over MQTT, read from the store: see docs/home-assistant.md."""
