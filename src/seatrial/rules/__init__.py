"""Rules: black-box sensors on the metric streams of any stack, through the vocabulary's canonical names."""
