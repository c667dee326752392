"""Tests against real vLLM servers on CPU; run by `make test-servers`."""
