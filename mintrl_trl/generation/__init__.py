"""Who continues token ids: a vLLM server, or the trained model itself in process."""
