"""Laws of every processor, image processor, video processor and feature extractor of Transformers; see `process`."""
