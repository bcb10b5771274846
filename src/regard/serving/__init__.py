"""Models over HTTP. Needs the extra `serve`; nothing outside this room and its verb imports it."""
