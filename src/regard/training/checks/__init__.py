"""What `regard doctor` looks at in a run: one function a question, which answers with a finding, or None."""
