"""What a reader is given: templates, prompts, chat formats, and cutting to length."""
