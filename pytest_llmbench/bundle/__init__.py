"""Evidence to hand over: a session in one signed file, and its verification on another machine."""
