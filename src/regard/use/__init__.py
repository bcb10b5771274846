"""Using models: loading, translating, predicting, evaluating."""
