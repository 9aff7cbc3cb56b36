"""Runtime of a rank: its context, step log, clock and rendezvous."""
