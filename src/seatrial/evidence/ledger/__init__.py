"""The rows of a run, one per trained sample: their schema, readers for each stack's form, and the laws they satisfy."""
