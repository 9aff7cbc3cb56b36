"""What the checks ask of nodes and ranks: facts of a host, rates of a GPU, of the network and of storage."""
