"""Questions of four kinds, made of the bundled articles by rules: the tasks of a study that has none of its own."""
