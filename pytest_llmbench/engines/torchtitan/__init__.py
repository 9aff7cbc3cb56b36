"""Engine torchtitan: torchtitan as a command."""
