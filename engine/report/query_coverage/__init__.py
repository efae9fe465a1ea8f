"""Query coverage: the parts of users' questions that contain no evaluation query."""
