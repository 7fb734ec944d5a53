"""aiter's name for rfops.compat.aiter, in a folder that is on no path by itself: `rfops eval` and
`rfops run --aiter` put it there. Importing it puts rfops' modules in its place."""

from rfops.compat.aiter import install

install()
