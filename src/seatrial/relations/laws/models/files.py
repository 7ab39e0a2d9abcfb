"""R5.files: a model that is read from files is the one that was written, in every form of files."""

from __future__ import annotations

from typing import Any

from seatrial.relations.cases.case import AsItIs, as_it_is
from seatrial.relations.contracts.model_files import FileForm
from seatrial.relations.law import Measure, Relation

FILES = Relation(
    id="R5.files",
    name="a-model-is-what-its-files-say",
    component="model_files",
    statement="Files in shards, in another type, of the base or of the whole, and with tied weights under any of their "
    "names give the weights that were written, and no name is missing or unexpected.",
    cost="CPU, half a second a family",
    cases=as_it_is,
    seeded=False,
)
LOST = "a renaming that applies one way alone, a tensor that is made again without a word"


@FILES.law("as it is", LOST, form="as it is")
@FILES.law("in shards", "a tensor that two shards have, or none", form="in shards")
@FILES.law("in bfloat16", "the type of the configuration in place of the files'", form="in bfloat16")
@FILES.law("the base of the whole", LOST, form="base of the whole")
@FILES.law("the whole of the base", LOST, form="whole of the base")
@FILES.law(
    "tied weights by another name",
    "a head that is drawn where the files have the embeddings alone",
    form="another tied name",
)
def files_have_the_weights(stack: Any, case: AsItIs, *, form: FileForm) -> Measure:
    """Check that nothing differs after a model was written and read."""
    return Measure.count(stack.file_errors(form), "tensors and names that differ after reading")
