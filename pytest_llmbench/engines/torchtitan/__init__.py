"""Engines nemo_launcher and nemo_torchrun: NeMo as a command."""
