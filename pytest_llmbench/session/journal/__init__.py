"""What a session was about to do, and did: on disk before it is acted on, so that another process can go on."""
