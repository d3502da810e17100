"""Compares a candidate (network or settings) with what is in force: better, worse, or not enough proof."""
