"""Pure arithmetic that judges a series of steps: `sanity` (can it be believed?), `interval` (how sure is a speed?)."""
