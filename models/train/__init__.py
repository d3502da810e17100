"""Train a detector of our own: assemble the data, augment it, learn, export. Start with docs/training.md."""
