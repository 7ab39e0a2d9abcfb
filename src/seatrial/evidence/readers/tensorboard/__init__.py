"""TensorBoard event files, read whole."""
