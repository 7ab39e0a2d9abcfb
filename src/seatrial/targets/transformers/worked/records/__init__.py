"""What processors and tokenizers of Transformers give by class and options, on record; see `records.answers`."""
