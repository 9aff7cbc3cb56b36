"""Tables and files made from records."""
