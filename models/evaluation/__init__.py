"""How well detectors do on labelled pictures: sets, arithmetic, tables."""
