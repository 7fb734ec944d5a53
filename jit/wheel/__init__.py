"""The build backend of the rfops wheel. Nothing imports it at run time."""
