"""Kill -9, cuts, a full disk and a stepped clock while escalations flow: nothing is lost, nothing done twice."""
