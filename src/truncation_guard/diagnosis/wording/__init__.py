"""The texts of findings: a fact and a remedy, from their figures."""
