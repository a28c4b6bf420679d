"""What findings say: a fact and a remedy, out of their figures."""
