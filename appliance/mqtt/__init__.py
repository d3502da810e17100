"""What home automation is told over MQTT, read from the store: see docs/home-assistant.md."""
