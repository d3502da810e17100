"""Versioned models: what a bundle says of itself, which are installed, and which is in force for which camera."""
