"""From `wheels.json` to users: stage, gate, promote, index. Knows nothing of how wheels are built."""
