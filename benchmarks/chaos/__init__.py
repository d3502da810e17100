"""Kill -9, cuts, a full disk and a stepped clock while questions flow: nothing is lost, nothing done twice."""
