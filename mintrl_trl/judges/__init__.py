"""Who reads the policy's text: language models over HTTP or in process, and programs that check exactly."""
