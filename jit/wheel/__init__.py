"""What builds rfops' own wheel; nothing at run time imports it."""
