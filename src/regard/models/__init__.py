"""The four families, their settings, presets and heads, and counting before building."""
