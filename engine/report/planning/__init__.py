"""Plans of evaluations: LLM calls, tokens, memory, time and cost before they are spent."""
