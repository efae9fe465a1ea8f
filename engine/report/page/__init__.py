"""The page of an evaluation, ``report.html``, made of the files that the evaluation wrote."""
