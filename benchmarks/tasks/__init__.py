"""Questions of four kinds, made from the bundled articles by rules: tasks for a study without data of its own."""
