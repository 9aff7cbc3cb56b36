"""Floor 3: nodes and jobs. Allocations are held, leases are lent, runs are launched, watched and ended."""
