"""What a rollout is, and how Algorithm 1 makes one. Standard library and asyncio only."""
