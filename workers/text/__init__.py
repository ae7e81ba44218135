"""Token ids to text and back: tokenizer, incremental detokenizer, stop strings. Pure: no queue, no web, no template."""
