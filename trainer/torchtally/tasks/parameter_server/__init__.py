"""An embedding table on a parameter server, trained together with a linear layer in DDP."""
