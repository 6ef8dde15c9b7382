"""The run of a fit: loop, messages, checkpoints, memory."""
