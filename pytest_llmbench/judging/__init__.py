"""Pure arithmetic that judges a series of steps. Folders: `sanity` (can it be believed?), `findings`."""
