"""Floor 1½: what the ranks and the frameworks wrote becomes a step series. Nothing in a file makes reading fail."""
