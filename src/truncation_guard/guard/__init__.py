"""One generation batch on its way through a training."""
